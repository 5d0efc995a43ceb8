#include "runtime/module/messages.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <memory>

namespace pipewright {

namespace {

// Memory that is not from LibTorch's allocator, reported to those who count (memory_meter.h).
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

int64_t LayoutBytes(size_t dimensions) {
  return static_cast<int64_t>((1 + dimensions) * sizeof(int64_t));
}

Bundle MakeMessage(Tensors tensors, const std::vector<bool>& there) {
  struct Message {
    Tensors tensors;
    std::vector<int64_t> layout;
  };
  auto message = std::make_shared<Message>();
  message->tensors = std::move(tensors);
  Bundle bundle;
  for (size_t i = 0; i < message->tensors.size(); ++i) {
    const at::Tensor& tensor = message->tensors[i];
    bundle.regions.push_back({tensor.data_ptr(), tensor.nbytes()});
    message->layout.push_back(there.empty() || there[i]);
    const at::IntArrayRef strides = tensor.strides();
    message->layout.insert(message->layout.end(), strides.begin(), strides.end());
  }
  bundle.regions.push_back({message->layout.data(), message->layout.size() * sizeof(int64_t)});
  bundle.owner = std::shared_ptr<Tensors>(message, &message->tensors);
  return bundle;
}

Tensors ReadMessage(const Bundle& message) {
  Tensors tensors = TensorsOf(message);
  auto layout = static_cast<const int64_t*>(message.regions.back().data);
  for (at::Tensor& tensor : tensors) {
    const bool there = *layout++ != 0;
    const at::IntArrayRef strides(layout, static_cast<size_t>(tensor.dim()));
    layout += tensor.dim();
    if (there)
      Restride(tensor, strides);
    else
      tensor.reset();
  }
  return tensors;
}

at::Tensor EmptyTensor(at::IntArrayRef sizes, at::ScalarType type, const MemorySource& memory) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  std::shared_ptr<void> place = memory ? memory(bytes) : nullptr;
  if (!place) return at::empty(sizes, type);
  // Creates the tensor like at::empty; one made by from_blob could not be resized.
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

static bool IsPacked(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

void Restride(const at::Tensor& tensor, at::IntArrayRef strides) {
  if (tensor.strides() != strides)
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes().vec(), strides);
}

at::Tensor Packed(const at::Tensor& tensor) {
  if (IsPacked(tensor)) return tensor;
  const at::Tensor plain = tensor.resolve_conj().resolve_neg();
  if (IsPacked(plain)) return plain;
  // Keeps one of each repeated element: takes index 0 of the dimensions with stride 0.
  std::vector<int64_t> sizes = plain.sizes().vec();
  for (size_t d = 0; d < sizes.size(); ++d)
    if (plain.strides()[d] == 0) sizes[d] = 1;
  at::Tensor once = plain.as_strided(sizes, plain.strides());
  const size_t beyond = plain.storage().nbytes() -
                        static_cast<size_t>(plain.storage_offset()) * plain.itemsize();
  if (once.is_non_overlapping_and_dense() && once.numel() < plain.numel() &&
      beyond >= plain.nbytes())
    return plain;  // already packed
  // A copy keeps the order of the strides, which affects the choice of kernels.
  if (!once.is_non_overlapping_and_dense()) once = once.clone(at::MemoryFormat::Preserve);
  if (once.numel() == plain.numel()) return once;
  std::vector<int64_t> strides = once.strides().vec();
  for (size_t d = 0; d < sizes.size(); ++d)
    if (plain.strides()[d] == 0) strides[d] = 0;
  at::Tensor all = at::zeros(plain.sizes(), plain.options());
  all.as_strided(sizes, once.strides()).copy_(once);
  Restride(all, strides);
  return all;
}

at::Tensor ToTensor(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    return IsPacked(tensor) ? tensor.tensor_data() : Packed(tensor.detach());
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
