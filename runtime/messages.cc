#include "runtime/messages.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <memory>

namespace pipewright {

namespace {

// Memory that LibTorch's allocator knows nothing of, told to those who count (memory_meter.h).
struct Received {
  std::shared_ptr<void> place;
  int64_t bytes = 0;
  ~Received() { Report(-bytes); }
  void Report(int64_t change) const {
    if (change != 0 && c10::memoryProfilingEnabled())
      c10::reportMemoryUsageToProfiler(place.get(), change, 0, 0, c10::Device(c10::kCPU));
  }
};

}  // namespace

Bundle MakeBundle(Tensors tensors) {
  auto owner = std::make_shared<Tensors>(std::move(tensors));
  Bundle bundle;
  for (at::Tensor& tensor : *owner) bundle.regions.push_back({tensor.data_ptr(), tensor.nbytes()});
  bundle.owner = std::move(owner);
  return bundle;
}

const Tensors& TensorsOf(const Bundle& bundle) {
  return *static_cast<const Tensors*>(bundle.owner.get());
}

at::Tensor EmptyTensor(at::IntArrayRef sizes, at::ScalarType type, const MemorySource& memory) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  std::shared_ptr<void> place = memory ? memory(bytes) : nullptr;
  if (!place) return at::empty(sizes, type);
  // As at::empty makes it: from_blob's could not be resized.
  void* data = place.get();
  auto* owner = new Received{std::move(place), static_cast<int64_t>(bytes)};
  owner->Report(owner->bytes);
  at::DataPtr memory_of(data, owner, [](void* p) { delete static_cast<Received*>(p); }, at::kCPU);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(c10::Storage::use_byte_size_t{}, bytes, std::move(memory_of),
                   c10::GetAllocator(at::kCPU), /*resizable=*/true),
      c10::DispatchKeySet(c10::DispatchKey::CPU), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

bool IsPlain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor Plain(const at::Tensor& tensor) {
  return tensor.contiguous().resolve_conj().resolve_neg();
}

at::Tensor ToTensor(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return IsPlain(tensor) ? tensor.tensor_data() : Plain(tensor.detach());
  }
  return at::scalar_tensor(value.toScalar(), value.isInt()    ? at::kLong
                                             : value.isBool() ? at::kBool
                                                              : at::kDouble);
}

c10::IValue FromTensor(const at::Tensor& tensor, const ValueInfo& value) {
  if (value.kind == "int") return tensor.item<int64_t>();
  if (value.kind == "float") return tensor.item<double>();
  if (value.kind == "bool") return tensor.item<bool>();
  return tensor;
}

}  // namespace pipewright
