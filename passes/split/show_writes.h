// Makes writes visible to LibTorch's passes, which also run when code is read. They rely on
// schemas: they would drop a write through an undeclared view or to a norm's running statistics,
// and treat the memory as constant.
#pragma once
#include "passes/split/split.h"

namespace pipewright {

// Inserts pipewright::seen(value) after a write for each value whose memory changes without
// LibTorch's knowledge (passes/graph/memory.h knows more). The operator does nothing, but its
// schema allows it to do anything.
void ShowWrites(Model& model, ModuleAssignment& assignment);

// Does the same in a graph without modules, and undoes it.
void ShowWrites(const std::shared_ptr<torch::jit::Graph>& graph);
void HideWrites(torch::jit::Graph& graph);

}  // namespace pipewright
