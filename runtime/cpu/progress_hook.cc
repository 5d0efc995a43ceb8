#include "runtime/cpu/progress_hook.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <mutex>

namespace pipewright {

namespace {

thread_local Transport* hooked = nullptr;

class HookedAllocator : public c10::Allocator {
 public:
  explicit HookedAllocator(c10::Allocator* inner) : inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    if (hooked) hooked->Progress();
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* const inner_;
};

}  // namespace

ProgressHook::ProgressHook(Transport& transport) : before_(hooked) {
  if (!transport.NeedsProgress()) return;
  static std::once_flag once;
  // Never freed, because tensors may be allocated until the process ends.
  std::call_once(once, [] { c10::SetCPUAllocator(new HookedAllocator(c10::GetCPUAllocator())); });
  hooked = &transport;
}

ProgressHook::~ProgressHook() { hooked = before_; }

}  // namespace pipewright
