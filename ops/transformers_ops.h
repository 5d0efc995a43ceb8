// Operators that HuggingFace transformers defines in Python, under its names and with its results:
//   transformers::grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor
//       The products of a mixture of experts: rows offs[e - 1] to offs[e] of `input` (rows, in)
//       times weight[e] (experts, in, out). Rows after the last offset are 0.
// Its backward is one operation, too, which computes the gradients that are asked for:
//   pipewright::grouped_mm_backward(Tensor grad_output, Tensor input, Tensor weight, Tensor offs,
//       bool[2] output_mask) -> (Tensor, Tensor)
#pragma once
#include <string>

namespace pipewright {

// Registers the operators that no user library has registered; must be called after such libraries
// are loaded.
void RegisterTransformersOperators();

// Returns true if the operator is one of the above in this program's implementation.
bool IsOwnTransformersOperator(const std::string& name);

}  // namespace pipewright
