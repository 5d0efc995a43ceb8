// Which values may share memory.
#pragma once
#include <map>
#include <set>
#include <vector>

#include "passes/aliases.h"
#include "passes/model.h"

namespace pipewright {

// An in-place operation on `value`, or a norm in training on its running statistics; `top` is the
// node of the graph's top level around it.
struct Write {
  torch::jit::Node* top;
  torch::jit::Node* node;
  torch::jit::Value* value;
  size_t position;  // of `top`
};

// Memory by the values that made it: a view lies in the memory of what it is a view of, a list
// holds that of its elements.
class Memory {
 public:
  using Values = std::set<const torch::jit::Value*>;

  // Of what `nodes` and everything in their blocks make; other values are memory of their own.
  // `least` kUnknown: operators of which nobody knows may return what they are given, too.
  Memory(const std::vector<torch::jit::Node*>& nodes, Alias least);
  Memory(const Model& model, Alias least);

  // The values whose memory `value` may lie in, or hold.
  const Values& Of(const torch::jit::Value* value);
  // Those whose memory changes: of a list that grows the list, not its elements.
  Values Written(const Write& write);
  bool Share(const torch::jit::Value* a, const torch::jit::Value* b);
  // The tensor that `value` is a view of, through views of views; itself, if it is none.
  const torch::jit::Value* ViewedBy(const torch::jit::Value* value) const;

 private:
  void Collect(torch::jit::Node* node, Alias least);
  bool Flow(const torch::jit::Value* from, const torch::jit::Value* to);

  std::map<const torch::jit::Value*, Values> of_;
  std::vector<std::pair<const torch::jit::Value*, const torch::jit::Value*>> flows_;
  std::vector<std::pair<const torch::jit::Value*, const torch::jit::Value*>> puts_;
  std::map<const torch::jit::Value*, Values> put_;  // into a list, by the list
  std::map<const torch::jit::Value*, const torch::jit::Value*> view_of_;  // nullptr: of several
  Values holders_;  // lists that hold what other values made, and nothing of their own
};

bool Intersect(const Memory::Values& a, const Memory::Values& b);

// Tensors, and what holds some.
bool HasMemory(const torch::jit::Value* value);

// The writes of a top-level node at `position`.
void CollectWrites(torch::jit::Node* top, size_t position, std::vector<Write>& writes);

// The tensor that the node writes to and returns (add_, index_put_); nullptr: there is none.
torch::jit::Value* Returned(torch::jit::Node* node);

}  // namespace pipewright
