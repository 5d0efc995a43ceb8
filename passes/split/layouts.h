// Finds operations whose result depends on a tensor's memory layout, such as as_strided: a cut
// passes values on with their strides, but without what lies between their elements.
#pragma once
#include <vector>

#include "passes/split/split.h"

namespace pipewright {

// A value that may have gaps or share its memory with other elements, and a use of it that may
// affect the result of `reader`: no cut may lie between the value and that use.
struct LayoutUse {
  torch::jit::Value* value;
  torch::jit::Node* user;
  torch::jit::Node* reader;
};
std::vector<LayoutUse> LayoutUses(const Model& model);

// Throws Error if a cut lies between such a value and its use, or if it is a weight.
void CheckLayouts(const Model& model, const ModuleAssignment& assignment);

}  // namespace pipewright
