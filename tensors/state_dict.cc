#include "tensors/state_dict.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace pipewright {

namespace {

// Returns the number of elements from the first to the last.
int64_t Span(const at::Tensor& tensor) {
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return tensor.numel() > 0 ? last + 1 : 0;
}

std::string Address(const void* pointer) {
  return std::to_string(reinterpret_cast<uintptr_t>(pointer));
}

// Replaces the value but not the object, so that all its holders see the new value. set_data does
// the same, but not between the meta device and memory.
void Become(const at::Tensor& tensor, const at::Tensor& value) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(value.getIntrusivePtr());
  // The metadata stores the device and type of earlier gradients.
  if (auto* autograd = torch::autograd::impl::get_autograd_meta(tensor)) {
    std::lock_guard<std::mutex> lock(autograd->mutex_);
    autograd->grad_accumulator_.reset();
  }
}

}  // namespace

NamedTensors StateDictOf(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& item : module.named_parameters()) tensors.push_back({item.key(), item.value()});
  for (const auto& item : module.named_buffers()) tensors.push_back({item.key(), item.value()});
  return tensors;
}

std::vector<TensorExtent> Extents(const NamedTensors& tensors) {
  std::vector<TensorExtent> extents;
  for (const auto& [name, tensor] : tensors) {
    TensorExtent extent;
    extent.name = name;
    const uint64_t size = tensor.element_size();
    extent.bytes = static_cast<uint64_t>(tensor.numel()) * size;
    if (tensor.has_storage() && tensor.numel() > 0 &&
        (tensor.is_meta() || tensor.storage().data())) {
      const void* memory =
          tensor.is_meta() ? tensor.storage().unsafeGetStorageImpl() : tensor.storage().data();
      extent.storage = tensor.device().str() + ":" + Address(memory);
      extent.storage_bytes = tensor.storage().nbytes();
      extent.begin = static_cast<uint64_t>(tensor.storage_offset()) * size;
      extent.end = extent.begin + static_cast<uint64_t>(Span(tensor)) * size;
    }
    extents.push_back(std::move(extent));
  }
  return extents;
}

std::vector<OwnedTensor> OwnersOf(const NamedTensors& tensors) {
  std::map<std::string, std::string> owner_of;  // dropped name -> kept name
  for (const auto& [name, dropped] : NamesToKeep(Extents(tensors)))
    for (const std::string& other : dropped) owner_of[other] = name;
  std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  std::vector<OwnedTensor> owners;
  std::map<const void*, size_t> index;  // owner -> index
  for (const auto& [name, tensor] : tensors) {
    auto kept = owner_of.find(name);
    const at::Tensor& owner = kept == owner_of.end() ? tensor : by_name.at(kept->second);
    auto [at, fresh] = index.emplace(owner.unsafeGetTensorImpl(), owners.size());
    if (fresh) owners.push_back({{}, owner, {}});
    OwnedTensor& owned = owners[at->second];
    auto place = tensor.is_same(owner) && (owned.names.empty() || kept == owner_of.end())
                     ? owned.names.begin()
                     : owned.names.end();
    owned.names.insert(place, name);
    bool known = tensor.is_same(owner);
    for (const OwnedTensor::View& view : owned.views) known = known || view.tensor.is_same(tensor);
    if (known) continue;
    if (tensor.scalar_type() != owner.scalar_type())
      throw Error(Quote(name), "shares memory with " + Quote(kept->second) + " as another type");
    owned.views.push_back({tensor, tensor.sizes().vec(), tensor.strides().vec(),
                           tensor.storage_offset() - owner.storage_offset()});
  }
  return owners;
}

bool CoversOwner(const OwnedTensor& owned, const at::Tensor& tensor) {
  return tensor.is_same(owned.owner) ||
         (tensor.numel() == owned.owner.numel() && tensor.is_non_overlapping_and_dense());
}

at::Tensor OwnersValue(const OwnedTensor& owned, const at::Tensor& tensor,
                       const at::Tensor& value) {
  for (const OwnedTensor::View& view : owned.views) {
    if (!view.tensor.is_same(tensor)) continue;
    const at::Tensor whole =
        at::empty_strided(owned.owner.sizes(), owned.owner.strides(), value.options());
    whole.as_strided(view.sizes, view.strides, view.offset).copy_(value);
    return whole;
  }
  return value;
}

void Replace(const OwnedTensor& tensor, at::Tensor value) {
  at::NoGradGuard no_grad;
  value = value.detach();
  const at::Tensor& owner = tensor.owner;
  if (owner.is_non_overlapping_and_dense() && owner.strides() != value.strides())
    value = at::empty_strided(owner.sizes(), owner.strides(), value.options()).copy_(value);
  Become(owner, value);
  for (const OwnedTensor::View& view : tensor.views)
    Become(view.tensor,
           value.as_strided(view.sizes, view.strides, value.storage_offset() + view.offset));
}

void Empty(const OwnedTensor& tensor) {
  const at::Tensor& owner = tensor.owner;
  Replace(tensor, at::empty_strided(owner.sizes(), owner.strides(),
                                    owner.options().device(at::kMeta).requires_grad(false)));
}

void CheckShape(const std::string& name, at::IntArrayRef model, at::IntArrayRef value) {
  if (model == value) return;
  throw Error("Trying to set a tensor of shape " + ShapeText(value.vec()) + " in " + Quote(name) +
              " (which has shape " + ShapeText(model.vec()) + "), this looks incorrect.");
}

void SetTensor(torch::nn::Module& module, const std::string& name, at::Device device,
               const at::Tensor& value, std::optional<at::ScalarType> dtype) {
  const NamedTensors tensors = StateDictOf(module);
  std::vector<std::string> names;
  for (const auto& [known, tensor] : tensors) names.push_back(known);
  auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw Error("module", "has no parameter or buffer " + Quote(name) + Suggest(name, names));
  const at::Tensor& tensor = tensors[static_cast<size_t>(found - names.begin())].second;
  for (const OwnedTensor& owned : OwnersOf(tensors)) {
    if (std::find(owned.names.begin(), owned.names.end(), name) == owned.names.end()) continue;
    if (!owned.owner.is_same(tensor))
      throw Error(Quote(name), "is a part of " + Quote(owned.names[0]), "set that one");
    if (value.defined()) CheckShape(name, tensor.sizes(), value.sizes());
    if (!value.defined() && tensor.is_meta() && !device.is_meta())
      throw Error(Quote(name), "is on the meta device and has no values", "give it a value");
    const at::Tensor from = (value.defined() ? value : tensor).detach();
    const at::ScalarType type = dtype && from.is_floating_point() ? *dtype : tensor.scalar_type();
    at::NoGradGuard no_grad;
    Replace(owned, from.to(at::dtype(type).device(device), /*non_blocking=*/false, /*copy=*/true));
  }
}

}  // namespace pipewright
