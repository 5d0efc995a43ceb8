// The policies of `pipewright place`: they choose a device for each part of a model.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/placement/budgets.h"
#include "plan/placement/device_map.h"
#include "plan/placement/module_tree.h"

namespace pipewright {

struct PlaceOptions {
  // auto: accelerate's greedy placement under the budgets as given; sequential: the same, strictly
  // in order; balanced: equal shares of the accelerators; balanced_low_0: the same, the first
  // accelerator with as little as possible; optimal: the fewest bytes moved a sweep.
  std::string policy = "auto";
  std::vector<Budget> budgets;        // of ParseBudgets
  std::vector<std::string> no_split;  // classes whose modules are not cut
  bool offload_buffers = false;  // else buffers of what lies on cpu or disk stay on the accelerator
  bool fallback = false;         // greedy: a device that would get nothing takes what fits
  bool compat_accelerate = false;  // balanced: accelerate's budgets; auto: its stranded layers too
  int64_t activations = 0;         // optimal: bytes an accelerator needs besides weights
  int slots = 2;                   // optimal: largest layers in flight while another computes
};

struct BudgetUse {
  std::string device;
  int64_t limit = -1;    // the one the policy worked with; -1: none
  int64_t used = 0;      // weights and buffers that lie there, each tied weight once
  int64_t reserved = 0;  // kept free for layers that visit, and activations
  // A run takes more: see plan/placement/process_bytes.h.
  int64_t slots = 0, process = 0;
  int64_t Peak() const { return used + slots + process; }
};

struct PlacedPart {
  std::string name, device, why;
  int64_t bytes = 0;
};

struct Placement {
  DeviceMap map;
  std::vector<PlacedPart> parts;       // before names are merged under their prefix
  std::vector<std::string> uncovered;  // tensors that found no place
  std::vector<BudgetUse> budgets;
  std::vector<std::string> warnings;
  // Bytes of weights that each sweep brings to an accelerator (with none: to memory), and a bound
  // that no placement under these budgets can beat; -1 where the policy does not compute it.
  int64_t moved = 0, moved_bound = -1;
};

// Throws Error for an unknown policy. That the model does not fit is told by `uncovered`.
Placement Place(const ModuleTree& tree, const PlaceOptions& options);

// An atom is a part that policies move as one: a module that is not split further, or a tensor
// outside of one. Atoms are in the order of the model; tied ones are merged into the first.
struct Atom {
  std::vector<TreeEntry> entries;
  int64_t bytes = 0;         // each tensor once; without `shared`
  int64_t buffer_bytes = 0;  // of those
  // Buffers that other atoms use as well, with their bytes: each device has them once.
  std::vector<std::pair<int, int64_t>> shared;
};
std::vector<Atom> Atoms(const ModuleTree& tree, const std::vector<std::string>& no_split);
int64_t SharedBytes(const std::vector<Atom>& atoms);  // each buffer once

// The load of a device as atoms are added.
struct AtomLoad {
  int64_t bytes = 0;
  std::set<int> shared;
  int64_t With(const Atom& atom) const;  // bytes
  void Add(const Atom& atom);
};

// Puts atoms on accelerators in contiguous runs, so that the largest load is least and, among
// those, the loads are most even (least sum of squares); none is above its budget. Returns the
// index into `limits` of every atom, or nothing where they do not fit in this order.
std::vector<int> BalanceInOrder(const std::vector<Atom>& atoms, const std::vector<int64_t>& limits);

// Puts atoms on accelerators (index into `limits`) or nowhere (-1), so that the most bytes stay
// resident. `order` of two equal choices is the model's. Exact for one accelerator where the sums
// are few (up to about a million), otherwise close; compare with the bound. Where they are not in
// contiguous runs, room for all shared buffers is kept on each.
std::vector<int> MostResident(const std::vector<Atom>& atoms, const std::vector<int64_t>& limits);

// The same where only a part of an atom travels, its buffers staying on the first accelerator
// wherever it lies else, and some atoms may not travel. Empty where it finds no such choice.
struct Stay {
  int64_t bytes = 0, travels = 0;  // of these
  bool must = false;               // stay resident
};
std::vector<int> MostResident(const std::vector<Stay>& stays, const std::vector<int64_t>& limits);

}  // namespace pipewright
