#include "runtime/progress_hook.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

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

ProgressHook::ProgressHook(Transport& transport) {
  // Never freed: tensors may be allocated until the process ends.
  static auto* allocator = new HookedAllocator(c10::GetCPUAllocator());
  if (c10::GetCPUAllocator() != allocator) c10::SetCPUAllocator(allocator);
  hooked = &transport;
}

ProgressHook::~ProgressHook() { hooked = nullptr; }

}  // namespace pipewright
