// What a node costs, counted from the shapes that the model file records.
#pragma once
#include "passes/model.h"

namespace pipewright {

// Sizes that are symbols count as kAssumedSize, within the symbol's range; so do unknown ones.
constexpr int64_t kAssumedSize = 16;

// Number of elements of a value; of a tensor whose shape is not recorded, 0.
double Elements(const Model& model, const torch::jit::Value* value);
// Bytes of a value that crosses between modules.
double ValueBytes(const Model& model, const torch::jit::Value* value);

struct NodeCost {
  double flops = 0;  // multiplications and additions of matrix products and convolutions
  double bytes = 0;  // read and written
  // In the time of one floating-point operation; moving a byte takes kFlopsPerByte of them.
  double Total() const;
};

// Forward only; backward is about twice that for every node, so the ratio between nodes stays.
NodeCost CostOf(const Model& model, const torch::jit::Node* node);

}  // namespace pipewright
