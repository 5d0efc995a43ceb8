#include "tensors/late_numbers.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace pipewright {

static constexpr int64_t kPage = 256;  // numbers

void LateNumbers::Store(double number, const Target& target) {
  if (target.real)
    *target.real = number;
  else
    *target.whole = static_cast<int64_t>(number);
}

void LateNumbers::Copy(const at::Tensor& number, const Target& target) {
  if (number.is_cpu()) return Store(number.item<double>(), target);
  at::NoGradGuard no_grad;
  const int64_t place = static_cast<int64_t>(targets_.size());
  const size_t page = static_cast<size_t>(place / kPage);
  if (page == pages_.size())
    pages_.push_back(at::empty({kPage}, at::dtype(at::kDouble).pinned_memory(true)));
  pages_[page]
      .narrow(0, place % kPage, 1)
      .copy_(number.detach().reshape({1}).to(at::kDouble), /*non_blocking=*/true);
  targets_.push_back(target);
  copied_.reset();
  device_ = number.device();
}

c10::Event& LateNumbers::AfterCopies() {
  if (!copied_) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    copied_.emplace(device_.type());
    copied_->record(guard.getStream(device_));
  }
  return *copied_;
}

bool LateNumbers::Ready() { return targets_.empty() || AfterCopies().query(); }

void LateNumbers::Read() {
  if (targets_.empty()) return;
  AfterCopies().synchronize();
  for (size_t i = 0; i < targets_.size(); ++i)
    Store(pages_[i / kPage].const_data_ptr<double>()[i % kPage], targets_[i]);
  targets_.clear();
}

}  // namespace pipewright
