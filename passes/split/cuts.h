// Finds places to cut the order of execution, for passes/split/split.cc.
#pragma once
#include <map>
#include <string>
#include <unordered_set>

#include "passes/split/split.h"

namespace pipewright {

// Nodes to cut before, with reasons.
using Cuts = std::map<const torch::jit::Node*, std::string>;

// Returns true if the node counts as an operation; constants and lists belong to their users.
bool IsOperation(const torch::jit::Node* node);

// Returns true if the node belongs to submodule `name` or to one below it.
bool Belongs(const torch::jit::Node* node, const std::string& name);

// Tracks whether nodes, passed in order, lie between two switches of ops/region_ops.h or between
// set_grad_enabled(false) and (true). One module must hold such a region.
struct Regions {
  bool inside = false;
  void Pass(const torch::jit::Node* node);
  std::string name() const;  // region of the last node: "a torch.no_grad() region"

 private:
  bool no_grad_ = false;
  int vmaps_ = 0, autocasts_ = 0;
};

// Returns the operations before which no cut should be made, because it would be refused. It would
// divide a region or a list, separate an in-place write from what it changes or a tensor from an
// operation that depends on its layout, or be crossed by a tensor that cannot be sent, because its
// sizes depend on the data.
std::unordered_set<const torch::jit::Node*> Uncuttable(const Model& model);

Cuts CutsAtNames(const Model& model, const SplitSpec& split);
Cuts CutsAtChildren(const Model& model, const SplitSpec& split);
Cuts CutsBetweenSubmodules(const Model& model, const SplitSpec& split);
// Returns the cuts for kEqual, kBalanced and kSize. Appends to `warnings` if cuts lie elsewhere
// than requested.
Cuts CutsByCost(const Model& model, const SplitSpec& split, std::vector<std::string>& warnings);

// Returns advice for children:PATH that names the containers with the most children.
std::string NameContainer(const std::vector<std::string>& submodules);

// Throws Error because the submodule does not exist or has no operations, with suggestions.
[[noreturn]] void RefuseName(const Model& model, const std::string& option,
                             const std::string& name);

}  // namespace pipewright
