// Places to cut the order of execution, for passes/split.cc.
#pragma once
#include <map>
#include <string>
#include <unordered_set>

#include "passes/split.h"

namespace pipewright {

// Cuts before these nodes, and why.
using Cuts = std::map<const torch::jit::Node*, std::string>;

// Whether the node counts as an operation: constants and lists belong to their users.
bool IsOperation(const torch::jit::Node* node);

// Whether the node belongs to submodule `name`, or to one below it.
bool Belongs(const torch::jit::Node* node, const std::string& name);

// Tells the nodes that lie between two switches of passes/region_ops.h, or between
// set_grad_enabled(false) and (true), which one module holds: nodes are passed in order.
struct Regions {
  bool inside = false;
  void Pass(const torch::jit::Node* node);
  std::string name() const;  // of the region that the last node is in, "a torch.no_grad() region"

 private:
  bool no_grad_ = false;
  int vmaps_ = 0, autocasts_ = 0;
};

// The operations before which no cut should lie: it would part a region, a list, or a write in
// place from what it changes, or a tensor from what depends on its layout, and be refused; or let a
// tensor cross whose sizes depend on the data, which cannot be sent.
std::unordered_set<const torch::jit::Node*> Uncuttable(const Model& model);

Cuts CutsAtNames(const Model& model, const SplitSpec& split);
Cuts CutsAtChildren(const Model& model, const SplitSpec& split);
Cuts CutsBetweenSubmodules(const Model& model, const SplitSpec& split);
// kEqual, kBalanced, kSize. `warnings`: of cuts that lie elsewhere than asked.
Cuts CutsByCost(const Model& model, const SplitSpec& split, std::vector<std::string>& warnings);

// Throws Error: no such submodule, or one without operations, with suggestions.
[[noreturn]] void RefuseName(const Model& model, const std::string& option,
                             const std::string& name);

}  // namespace pipewright
