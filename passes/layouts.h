// Operations whose result depends on how a tensor lies in memory, such as as_strided: a cut hands
// values on with their strides, but without the gaps between their elements.
#pragma once
#include <vector>

#include "passes/split.h"

namespace pipewright {

// A value that may have gaps, or share its memory with more than itself, and a use of it on which
// the result of `reader` may depend: no cut may lie between the value and that use.
struct LayoutUse {
  torch::jit::Value* value;
  torch::jit::Node* user;
  torch::jit::Node* reader;
};
std::vector<LayoutUse> LayoutUses(const Model& model);

// Throws Error for a cut between such a value and its use.
void CheckLayouts(const Model& model, const Assignment& assignment);

}  // namespace pipewright
