#include "runtime/messages.h"

#include <ATen/ATen.h>

#include <memory>

namespace pipewright {

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
  auto* owner = new std::shared_ptr<void>(std::move(place));
  at::DataPtr memory_of(data, owner, [](void* p) { delete static_cast<std::shared_ptr<void>*>(p); },
                        at::kCPU);
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
