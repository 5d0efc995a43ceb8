// Which values may share memory, by the operators' schemas.
#pragma once
#include <map>
#include <vector>

#include "passes/model.h"

namespace pipewright {

// Classes of values that may share memory. Ids are dense and in the order of the first question.
class MemoryClasses {
 public:
  int Find(const torch::jit::Value* value);
  void Join(const torch::jit::Value* a, const torch::jit::Value* b);

 private:
  std::map<const torch::jit::Value*, int> ids_;
  std::vector<int> parent_;
};

// Tensors, and what holds some.
bool HasMemory(const torch::jit::Value* value);

// Joins what the node, and everything in its blocks, makes share memory.
void JoinNode(torch::jit::Node* top, MemoryClasses& classes);

// An in-place operation on `value`, or a norm in training on its running statistics; `top` is the
// node of the graph's top level around it.
struct Write {
  torch::jit::Node* top;
  torch::jit::Node* node;
  torch::jit::Value* value;
  size_t position;  // of `top`
};

// The writes of a top-level node at `position`.
void CollectWrites(torch::jit::Node* top, size_t position, std::vector<Write>& writes);

// The tensor that the node writes to and returns (add_, index_put_); nullptr: there is none.
torch::jit::Value* Returned(torch::jit::Node* node);

}  // namespace pipewright
