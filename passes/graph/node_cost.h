// Estimates the cost of a node from the shapes that the model file records.
#pragma once
#include "passes/graph/model.h"

namespace pipewright {

// Size assumed for symbols, clamped to the symbol's range, and for unknown sizes.
constexpr int64_t kAssumedSize = 16;

// Returns the number of elements of a value; 0 for a tensor without a recorded shape.
double Elements(const Model& model, const torch::jit::Value* value);
// Returns the bytes of a value that crosses between modules.
double AssumedBytes(const Model& model, const torch::jit::Value* value);

struct NodeCost {
  double flops = 0;  // multiplications and additions of matrix products and convolutions
  double bytes = 0;  // bytes read and written
  // Returns the cost in floating-point operations; moving a byte costs kFlopsPerByte of them.
  double Total() const;
};

// Counts forward only: backward costs about twice that for every node, so ratios stay the same.
NodeCost CostOf(const Model& model, const torch::jit::Node* node);

}  // namespace pipewright
