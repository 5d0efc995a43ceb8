// Accesses the tensors of a model by name and replaces their values while keeping ties.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/weights/shared_tensors.h"

namespace pipewright {

// A state dict: names are unique, but tensors may share memory.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Returns the parameters and then the buffers of a module, depth first; tied ones under each name.
NamedTensors StateDictOf(const torch::nn::Module& module);

// Returns the memory range of each tensor, for the rules of shared tensors. Meta tensors have no
// memory to compare; two names share if they are one tensor.
std::vector<TensorExtent> Extents(const NamedTensors& tensors);

// One block of memory and everything in it.
struct OwnedTensor {
  std::vector<std::string> names;  // the owner's first, in the order of the model
  at::Tensor owner;
  // Other tensors in the same memory, by offset. Tied names are one tensor and not listed here.
  struct View {
    at::Tensor tensor;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;  // in elements from the owner's first
  };
  std::vector<View> views;
};
// Returns the owners in the order of the model. Throws Error if names share memory and none covers
// all of it, or if their types differ.
std::vector<OwnedTensor> OwnersOf(const NamedTensors& tensors);

// Returns true if `tensor`, which has one of the names, is the owner or a view of all of it.
bool CoversOwner(const OwnedTensor& owned, const at::Tensor& tensor);

// Returns the owner's values when such a tensor has `value`.
at::Tensor OwnersValue(const OwnedTensor& owned, const at::Tensor& tensor, const at::Tensor& value);

// Gives the tensor and its views another device, type and memory. All holders (the model's members,
// other names, an optimizer) see the new values. `value` has the owner's shape and is outside of
// autograd; it is copied if the owner's memory order differs.
void Replace(const OwnedTensor& tensor, at::Tensor value);

// Does the same without values, on the meta device.
void Empty(const OwnedTensor& tensor);

// Throws Error in accelerate's wording if the shapes differ.
void CheckShape(const std::string& name, at::IntArrayRef model, at::IntArrayRef value);

// Sets device and value of a parameter or buffer of a module, under every name that it has; a meta
// tensor gets memory. `value` must have the same shape; if undefined, the values stay, which a meta
// tensor does not have. The result has the existing type, or `dtype` if given and the value is
// floating-point. Throws Error for unknown names (with a suggestion), another shape, or a meta
// tensor without a value.
void SetTensor(torch::nn::Module& module, const std::string& name, at::Device device,
               const at::Tensor& value = {}, std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace pipewright
