#include "tensors/page_memory.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <sys/mman.h>

namespace pipewright {

namespace {

constexpr size_t kLarge = 1 << 20;  // bytes

struct Pages {
  void* data = nullptr;
  size_t size = 0;
};

class PageAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size < kLarge) return c10::GetAllocator(at::kCPU)->allocate(size);
    void* data =
        mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    TORCH_CHECK(data != MAP_FAILED, "no memory for a tensor of ", size, " bytes");
#ifdef MADV_HUGEPAGE
    madvise(data, size, MADV_HUGEPAGE);
#endif
    return {data, new Pages{data, size}, &Free, at::kCPU};
  }
  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  static void Free(void* context) {
    const auto* pages = static_cast<Pages*>(context);
    munmap(pages->data, pages->size);
    delete pages;
  }
};

}  // namespace

at::Tensor EmptyInPages(at::IntArrayRef sizes, at::ScalarType type) {
  static auto& allocator = *new PageAllocator;  // never freed, because tensors may outlive statics
  return at::detail::empty_generic(sizes, &allocator, c10::DispatchKeySet(c10::DispatchKey::CPU),
                                   type, std::nullopt);
}

}  // namespace pipewright
