// Determines which operators may return or write to the memory of their inputs: from their schemas,
// and from tables where calls show that the schemas are incomplete.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

namespace pipewright {

enum class Alias {
  kNone,
  kUnknown,  // a user's operator, or one that the test of the tables cannot call
  kKnown,
};

// Returns true if result `output` may share memory with argument `input`, which may be a list of
// `items` tensors.
Alias AliasOf(const c10::FunctionSchema& schema, size_t input, size_t output, size_t items = 1);
Alias AliasOf(const torch::jit::Node* node, size_t input, size_t output);

// Returns true if the operator writes to argument `input`. For the norms of torch.nn.functional see
// ops/statistics.h.
bool WritesTo(const c10::FunctionSchema& schema, size_t input);

// Returns true for operators that only TorchScript has: those on lists, tuples and dicts.
bool OfTorchScriptAlone(const c10::FunctionSchema& schema);

}  // namespace pipewright
