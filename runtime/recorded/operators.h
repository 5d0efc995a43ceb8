// Tells which operators of a module's code may be recorded. A recording sees what the dispatcher
// sees: a function of LibTorch that takes sizes or numbers out of a tensor's memory by itself,
// above the kernels, would go on with those of the recorded microbatch.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <set>
#include <string>

namespace pipewright {

// Returns whether `node` computes and reads data by kernels only. That is so of
// operators with a kernel of their own: it runs again as a whole, and their derivatives are made
// of operators (torch/csrc/autograd/FunctionsManual.cpp of PyTorch 2.13 touches memory for nested
// tensors alone). Of those made of other operators it is so where the source shows it; these are
// listed.
bool IsRecordable(const torch::jit::Node& node);

// The names of those that are listed, without "aten::": those that are made of others, and those of
// TorchScript alone.
const std::set<std::string>& ComposedOperators();
const std::set<std::string>& OperatorsOfTorchScript();

}  // namespace pipewright
