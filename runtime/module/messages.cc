#include "runtime/module/messages.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "tensors/device_memory.h"

namespace pipewright {

namespace {

// Memory from outside LibTorch's allocator, which it reports to memory profilers (memory_meter.h).
struct Received {
  std::shared_ptr<void> place;
  int64_t bytes = 0;
  ~Received() { Report(-bytes); }
  void Report(int64_t change) const {
    if (change != 0 && c10::memoryProfilingEnabled())
      c10::reportMemoryUsageToProfiler(place.get(), change, 0, 0, c10::Device(c10::kCPU));
  }
};

// LibTorch's own memory begins at multiples of this.
constexpr uintptr_t kAlignment = 64;

// Marks an absent tensor in the layout, in place of its alignment.
constexpr int64_t kAbsent = -1;

int64_t PlaceOf(const at::Tensor& tensor) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kAlignment);
}

void Restride(const at::Tensor& tensor, at::IntArrayRef strides) {
  if (tensor.strides() != strides)
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes().vec(), strides);
}

// Copies `values` to new memory, with these strides and a first address of this alignment.
at::Tensor Laid(const at::Tensor& values, at::IntArrayRef strides, int64_t place) {
  at::NoGradGuard no_grad;
  const int64_t begin = place / values.itemsize();
  int64_t elements = begin + 1;
  std::vector<int64_t> once = values.sizes().vec();
  at::Tensor from = values;
  for (int64_t d = 0; d < values.dim(); ++d) {
    if (values.size(d) == 0) return values;
    elements += (values.size(d) - 1) * strides[d];
    if (strides[d] > 0) continue;
    from = from.narrow(d, 0, 1);  // copy_ refuses repeated elements
    once[static_cast<size_t>(d)] = 1;
  }
  const at::Tensor memory = at::empty({elements}, values.options());
  memory.as_strided(once, strides, begin).copy_(from);
  return memory.as_strided(values.sizes(), strides, begin);
}

}  // namespace

static NumberType NumberTypeOf(const at::Tensor& tensor) {
  switch (c10::toRealValueType(tensor.scalar_type())) {
    case at::kHalf:
      return NumberType::kFloat16;
    case at::kBFloat16:
      return NumberType::kBFloat16;
    case at::kFloat:
      return NumberType::kFloat32;
    case at::kDouble:
      return NumberType::kFloat64;
    default:
      return NumberType::kNone;
  }
}

Region RegionOf(const at::Tensor& tensor) {
  return {tensor.data_ptr(), tensor.nbytes(), !tensor.is_cpu(), NumberTypeOf(tensor)};
}

Bundle MakeBundle(Tensors tensors) {
  auto owner = std::make_shared<Tensors>(std::move(tensors));
  Bundle bundle;
  for (at::Tensor& tensor : *owner) bundle.regions.push_back(RegionOf(tensor));
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
    at::Tensor& tensor = message->tensors[i];
    message->layout.push_back(there.empty() || there[i] ? PlaceOf(tensor) : kAbsent);
    const at::IntArrayRef strides = tensor.strides();
    message->layout.insert(message->layout.end(), strides.begin(), strides.end());
    if (!tensor.is_non_overlapping_and_dense()) tensor = tensor.contiguous();
    bundle.regions.push_back(RegionOf(tensor));
  }
  bundle.regions.push_back({message->layout.data(), message->layout.size() * sizeof(int64_t)});
  bundle.owner = std::shared_ptr<Tensors>(message, &message->tensors);
  return bundle;
}

Tensors ReadMessage(const Bundle& message, at::Device device, const std::vector<bool>& on_host) {
  Tensors tensors = TensorsOf(message);
  auto layout = static_cast<const int64_t*>(message.regions.back().data);
  for (size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& tensor = tensors[i];
    const int64_t place = *layout++;
    const at::IntArrayRef strides(layout, static_cast<size_t>(tensor.dim()));
    layout += tensor.dim();
    if (place == kAbsent) {
      tensor.reset();
      continue;
    }
    if (on_host.empty() || !on_host[i]) tensor = OnDeviceLater(tensor, device);
    const at::Tensor contiguous = tensor.strides() == strides ? tensor : tensor.alias();
    Restride(tensor, strides);
    if (!tensor.is_non_overlapping_and_dense())
      tensor = Laid(contiguous, strides, place);
    else if (PlaceOf(tensor) != place)
      tensor = Laid(tensor, strides, place);
  }
  return tensors;
}

Bundle MessageOnHost(Bundle message) {
  const Tensors& tensors = TensorsOf(message);
  if (std::all_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return t.is_cpu(); }))
    return message;
  struct Copy {
    Tensors tensors;
    std::shared_ptr<void> layout;  // keeps the message that holds it
  };
  auto copy = std::make_shared<Copy>(Copy{{}, message.owner});
  for (size_t i = 0; i < tensors.size(); ++i) {
    copy->tensors.push_back(OnPinnedHost(tensors[i]));
    message.regions[i] = RegionOf(copy->tensors.back());
  }
  message.owner = std::shared_ptr<Tensors>(copy, &copy->tensors);
  return message;
}

at::Tensor EmptyTensor(at::IntArrayRef sizes, at::ScalarType type, const MemorySource& memory,
                       at::Device device) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  std::shared_ptr<void> place = memory ? memory(bytes) : nullptr;
  if (!place) return EmptyOn(device, sizes, type);
  // Creates the tensor like at::empty; one made by from_blob could not be resized.
  void* data = place.get();
  auto* owner = new Received{std::move(place), device.is_cpu() ? static_cast<int64_t>(bytes) : 0};
  owner->Report(owner->bytes);
  at::DataPtr memory_of(data, owner, [](void* p) { delete static_cast<Received*>(p); }, device);
  c10::Storage storage(c10::Storage::use_byte_size_t{}, bytes, std::move(memory_of),
                       c10::GetAllocator(device.type()), /*resizable=*/true);
  if (!device.is_cpu()) {
    at::Tensor tensor = EmptyOn(device, {0}, type);
    return tensor.set_(std::move(storage), 0, sizes);
  }
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

bool HasRepeatedElements(const at::Tensor& tensor) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride and size
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1) steps.emplace_back(tensor.stride(d), tensor.size(d));
  std::sort(steps.begin(), steps.end());
  int64_t reach = 0;  // the reach of the dimensions with smaller strides
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

at::Tensor CopyAsItLies(const at::Tensor& tensor) {
  return Laid(tensor, tensor.strides(), PlaceOf(tensor));
}

at::Tensor ToTensor(const c10::IValue& value) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.is_conj() || tensor.is_neg()) return tensor.detach().resolve_conj().resolve_neg();
    return tensor.tensor_data();
  }
  return at::scalar_tensor(value.toScalar(), value.isInt()    ? at::kLong
                                             : value.isBool() ? at::kBool
                                                              : at::kDouble);
}

c10::IValue FromTensor(const at::Tensor& tensor, const ValueInfo& value) {
  if (value.kind == ValueKind::kInt) return tensor.item<int64_t>();
  if (value.kind == ValueKind::kFloat) return tensor.item<double>();
  if (value.kind == ValueKind::kBool) return tensor.item<bool>();
  return tensor;
}

}  // namespace pipewright
