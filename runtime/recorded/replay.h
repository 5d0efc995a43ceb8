// Runs the lists of a module.
#pragma once
#include <vector>

#include "runtime/module/messages.h"
#include "runtime/recorded/graph.h"

namespace pipewright {

// Runs `list` below autograd on what `slots` holds. `gradient`: runs in gradient mode, as autograd
// does in forward but not in backward, since kernels may check it. Throws what its operations
// throw.
void Replay(const InstructionList& list, bool gradient, const std::vector<at::Tensor>& weights,
            Tensors& slots);

// Returns the tensor of an operand; that of a constant may be undefined.
at::Tensor ValueOf(const Operand& operand, const std::vector<at::Tensor>& weights,
                   const Tensors& slots);

// Chooses for each instruction the cheapest way to call it.
void Specialize(InstructionList& list);

}  // namespace pipewright
