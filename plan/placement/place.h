// Implements the policies of `pipewright place`, which choose a device for each part of a model.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "plan/placement/budgets.h"
#include "plan/placement/device_map.h"
#include "plan/placement/tree/module_tree.h"

namespace pipewright {

enum class PlacePolicy {
  kAuto,          // accelerate's greedy placement under the budgets as given
  kBalanced,      // equal shares for the accelerators
  kBalancedLow0,  // the same, but as little as possible for the first accelerator
  kSequential,    // like kAuto, but strictly in order
  kOptimal,       // the fewest bytes moved per sweep
};

// Returns the policy that --policy names. Throws Error for an unknown name.
PlacePolicy PlacePolicyFromText(const std::string& text);

struct PlaceOptions {
  PlacePolicy policy = PlacePolicy::kAuto;
  std::vector<Budget> budgets;        // from ParseBudgets
  std::vector<std::string> no_split;  // classes whose modules are not split
  bool offload_buffers = false;    // false: the accelerator has the buffers of parts on cpu or disk
  bool fallback = false;           // greedy: a device that would get nothing takes what fits
  bool compat_accelerate = false;  // balanced: accelerate's budgets; auto: its stranded layers too
  int64_t activations = 0;         // optimal: bytes that an accelerator needs besides weights
  int slots = 2;                   // optimal: for loaded layers; each holds the largest one
};

struct BudgetUse {
  std::string device;
  int64_t limit = -1;    // the one the policy worked with; -1: none
  int64_t used = 0;      // weights and buffers on the device, each tied weight once
  int64_t reserved = 0;  // kept free for loaded layers and activations
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
  std::vector<std::string> uncovered;  // tensors that do not fit anywhere
  std::vector<BudgetUse> budgets;
  std::vector<std::string> warnings;
  // Bytes of weights that each sweep loads onto an accelerator (with none: into memory), and a
  // lower bound for all placements under these budgets; -1 if the policy does not compute it.
  int64_t moved = 0, moved_bound = -1;
};

// Places a model. If the model does not fit, `uncovered` is not empty.
Placement Place(const ModuleTree& tree, const PlaceOptions& options);

// An atom is a part that policies move as one: a module that is not split further, or a tensor
// outside of one. Atoms are in the order of the model; tied ones are merged into the first.
struct Atom {
  std::vector<TreeEntry> entries;
  int64_t bytes = 0;         // each tensor once; without `shared`
  int64_t buffer_bytes = 0;  // the part of `bytes` that is buffers
  // Buffers that other atoms use too, with their bytes: each device has them once.
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

// Puts atoms on accelerators in contiguous runs, so that the largest load is least and, among such
// placements, the loads are most even (least sum of squares); none is above its budget. Returns the
// index into `limits` of every atom, or nothing if they do not fit in this order.
std::vector<int> BalanceInOrder(const std::vector<Atom>& atoms, const std::vector<int64_t>& limits);

// Puts atoms on accelerators (index into `limits`) or nowhere (-1), so that the most bytes stay
// resident. Of two equal choices takes the first in the order of the model. Exact for one
// accelerator if there are few distinct sums (up to about a million), otherwise close; compare with
// the bound. Unless the atoms are in contiguous runs, each accelerator keeps room for all shared
// buffers.
std::vector<int> MostResident(const std::vector<Atom>& atoms, const std::vector<int64_t>& limits);

// Does the same if only `travels` bytes of an atom are saved when it is resident, because its
// buffers are on the first accelerator otherwise, and some atoms must be resident. Empty if it
// finds no such choice.
struct Stay {
  int64_t bytes = 0, travels = 0;  // `travels`: those loaded for each sweep unless resident
  bool must = false;               // must be resident
};
std::vector<int> MostResident(const std::vector<Stay>& stays, const std::vector<int64_t>& limits);

}  // namespace pipewright
