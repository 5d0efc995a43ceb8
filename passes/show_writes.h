// LibTorch's passes, which also run where code is read, tell by schemas what a write changes: they
// drop one through a view that no schema declares, or to a norm's running statistics, and take what
// it changes for a constant.
#pragma once
#include "passes/split.h"

namespace pipewright {

// Where they know less than passes/memory.h, puts pipewright::seen(value) behind the write and the
// memory that it changes: it does nothing, and may do anything as far as they know.
void ShowWrites(Model& model, Assignment& assignment);

// The same in a graph without modules, and back.
void ShowWrites(const std::shared_ptr<torch::jit::Graph>& graph);
void HideWrites(torch::jit::Graph& graph);

}  // namespace pipewright
