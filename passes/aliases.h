// Which operators may return memory that they are given, or write to it: their schemas say so, and
// where those say less than calls show, tables.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

namespace pipewright {

enum class Alias {
  kNone,
  kUnknown,  // a user's operator, or one that the test behind the tables cannot call
  kKnown,
};

// Tells whether result `output` may share memory with argument `input`, which may be a list of
// `items` tensors.
Alias AliasOf(const c10::FunctionSchema& schema, size_t input, size_t output, size_t items = 1);
Alias AliasOf(const torch::jit::Node* node, size_t input, size_t output);

// Tells whether the operator writes to argument `input`. Those of torch.nn.functional's norms:
// passes/statistics.h.
bool WritesTo(const c10::FunctionSchema& schema, size_t input);

// An operator of TorchScript alone: those on lists, tuples and dicts.
bool OfTorchScriptAlone(const c10::FunctionSchema& schema);

}  // namespace pipewright
