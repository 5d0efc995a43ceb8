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
  void* data = place.get();
  return at::from_blob(data, sizes, [place = std::move(place)](void*) {}, type);
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
