// Determines which values may share memory.
#pragma once
#include <map>
#include <set>
#include <vector>

#include "passes/graph/aliases.h"
#include "passes/graph/model.h"

namespace pipewright {

// An in-place operation on `value`, or a norm in training mode on its running statistics; `top` is
// the enclosing node at the graph's top level.
struct Write {
  torch::jit::Node* top;
  torch::jit::Node* node;
  torch::jit::Value* value;
  size_t position;  // the position of `top`
};

// Identifies memory by the values that created it: a view lies in the memory of its base, and a
// list holds that of its elements.
class Memory {
 public:
  using Values = std::set<const torch::jit::Value*>;

  // Analyzes the values made by `nodes` and in their blocks; other values have their own memory.
  // With `least` kUnknown, operators of unknown behavior may also return their inputs. With
  // `of_gradients`, detached tensors have their own memory: a write to a tensor gives no gradient
  // to one detached from it, or vice versa.
  Memory(const std::vector<torch::jit::Node*>& nodes, Alias least, bool of_gradients = false);
  Memory(const Model& model, Alias least, bool of_gradients = false);

  // Returns the values whose memory `value` may lie in or hold.
  const Values& Of(const torch::jit::Value* value);
  // Returns the values whose memory changes: growing a list changes the list, not its elements.
  Values Written(const Write& write);
  bool Share(const torch::jit::Value* a, const torch::jit::Value* b);
  // Returns the tensor that `value` is a view of, through views of views; `value` itself if it is
  // not a view.
  const torch::jit::Value* ViewedBy(const torch::jit::Value* value) const;

 private:
  void Collect(torch::jit::Node* node, Alias least, bool of_gradients);
  bool Flow(const torch::jit::Value* from, const torch::jit::Value* to);

  std::map<const torch::jit::Value*, Values> of_;
  std::vector<std::pair<const torch::jit::Value*, const torch::jit::Value*>> flows_;
  std::vector<std::pair<const torch::jit::Value*, const torch::jit::Value*>> puts_;
  std::map<const torch::jit::Value*, Values> put_;  // elements put into a list, by list
  std::map<const torch::jit::Value*, const torch::jit::Value*> view_of_;  // nullptr: several bases
  Values holders_;  // lists that hold only values made elsewhere
};

bool Intersect(const Memory::Values& a, const Memory::Values& b);

// Returns true for tensors and containers of them.
bool HasMemory(const torch::jit::Value* value);

// Collects the writes of a top-level node at `position`.
void CollectWrites(torch::jit::Node* top, size_t position, std::vector<Write>& writes);

// Returns the tensor that the node writes to and returns (add_, index_put_), or nullptr.
torch::jit::Value* Returned(torch::jit::Node* node);

}  // namespace pipewright
