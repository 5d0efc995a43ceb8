// Runs the lists of a module.
#pragma once
#include <vector>

#include "runtime/module/messages.h"
#include "runtime/recorded/graph.h"

namespace pipewright {

// Runs `list` below autograd on what `slots` holds. `gradient`: in gradient mode, as autograd runs
// forward and not backward; kernels may ask. Throws what its operations throw.
void Replay(const InstructionList& list, bool gradient, const std::vector<at::Tensor>& weights,
            Tensors& slots);

// The tensor of an operand; a constant's may be undefined.
at::Tensor ValueOf(const Operand& operand, const std::vector<at::Tensor>& weights,
                   const Tensors& slots);

// Chooses for each instruction the cheapest way to call it.
void Specialize(InstructionList& list);

}  // namespace pipewright
