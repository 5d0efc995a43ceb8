// Tells which operators of a module's code may be recorded. A recording sees what the dispatcher
// sees: a function of LibTorch that takes sizes or numbers out of a tensor's memory by itself,
// above the kernels, would go on with those of the recorded microbatch.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <set>
#include <string>

namespace pipewright {

// Returns true if `node` computes and reads data by kernels only. Operators with a kernel of their
// own do: the kernel runs again as a whole, and their derivatives are made of operators
// (torch/csrc/autograd/FunctionsManual.cpp of PyTorch 2.13 touches memory for nested tensors
// alone). Of the operators composed of others, those whose source shows it are listed.
bool IsRecordable(const torch::jit::Node& node);

// Return the names that are listed, without "aten::": operators composed of others, and operators
// that only TorchScript has.
const std::set<std::string>& ComposedOperators();
const std::set<std::string>& OperatorsOfTorchScript();

}  // namespace pipewright
