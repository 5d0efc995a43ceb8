// The tensors of a model by name, and giving them other values without losing who shares them.
#pragma once
#include <torch/nn/module.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/weights/shared_tensors.h"

namespace pipewright {

// A state dict: names differ, tensors may share memory.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Parameters, then buffers of a module, depth first; those of tied ones under each of their names.
NamedTensors StateDictOf(const torch::nn::Module& module);

// Where each tensor lies, for the rules of shared tensors. On the meta device, whose tensors have
// no memory that could be compared, two names share where they are one tensor.
std::vector<TensorExtent> Extents(const NamedTensors& tensors);

// One memory and all that lies in it.
struct OwnedTensor {
  std::vector<std::string> names;  // of the owner first, in the order of the model
  at::Tensor owner;
  // Other tensors in the same memory, by their place in it. Tied names are one tensor and none of
  // these.
  struct View {
    at::Tensor tensor;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;  // elements from the owner's first
  };
  std::vector<View> views;
};
// In the order of the model. Throws Error where names share memory and none covers all of it, or as
// other types.
std::vector<OwnedTensor> OwnersOf(const NamedTensors& tensors);

// Whether `tensor`, that of one of the names, is the owner or a view of all of it.
bool CoversOwner(const OwnedTensor& owned, const at::Tensor& tensor);

// The owner's values where such a tensor has `value`.
at::Tensor OwnersValue(const OwnedTensor& owned, const at::Tensor& tensor, const at::Tensor& value);

// Makes the tensor and its views another one: device, type, memory. Whoever holds them (the model's
// members, other names, an optimizer) sees the new values. `value` is of the owner's shape and
// outside of autograd; it is laid out anew where the owner's order of memory is another.
void Replace(const OwnedTensor& tensor, at::Tensor value);

// The same, values left out: on the meta device.
void Empty(const OwnedTensor& tensor);

// Throws Error as accelerate words it where the shapes differ.
void CheckShape(const std::string& name, at::IntArrayRef model, at::IntArrayRef value);

// Gives a parameter or buffer of a module a device and a value, under every name that it has; one
// on the meta device gets memory. `value`: of the same shape; undefined: the values stay, which a
// meta tensor has not. It takes the type of what is there, or `dtype` where given and the value has
// a floating type. Throws Error for unknown names (with a suggestion), another shape, a meta tensor
// without a value.
void SetTensor(torch::nn::Module& module, const std::string& name, at::Device device,
               const at::Tensor& value = {}, std::optional<at::ScalarType> dtype = std::nullopt);

}  // namespace pipewright
