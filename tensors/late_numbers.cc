#include "tensors/late_numbers.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
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
  device_ = number.device();
}

void LateNumbers::Read() {
  if (targets_.empty()) return;
  const c10::impl::VirtualGuardImpl guard(device_.type());
  c10::Event copied(device_.type());
  copied.record(guard.getStream(device_));
  copied.synchronize();
  for (size_t i = 0; i < targets_.size(); ++i)
    Store(pages_[i / kPage].const_data_ptr<double>()[i % kPage], targets_[i]);
  targets_.clear();
}

}  // namespace pipewright
