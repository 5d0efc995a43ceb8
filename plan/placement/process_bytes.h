// Computes the bytes that the processes of a run take at their peak: weights, the slots into which
// weights are loaded from disk, and the process itself. Records the budgets that a device map was
// made for.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "plan/placement/device_map.h"
#include "plan/placement/place.h"
#include "plan/placement/residence.h"

namespace pipewright {

// The memory of a pipewright-run process without tensors: programs, LibTorch's code and data, MPI.
// It is the peak in a run of a model with few weights, 117 MB, rounded up.
inline constexpr int64_t kProcessBytes = 120'000'000;

// Weights are loaded from disk into two slots of the rank that computes with them, each as large as
// the largest part; one slot is enough for one part.
struct RankWeights {
  int64_t resident = 0;  // bytes, each tensor once
  int64_t slots = 0;
};
// Returns the weights of each rank of `residence`. `training`: as in TensorIds.
std::vector<RankWeights> WeightsOfRanks(const Manifest& manifest, const Residence& residence,
                                        bool training);

// Fills in `slots` and `process` of the placement's budgets: each numbered device is a process, or
// cpu if there are none. For a package, modules of `manifest` are loaded as a whole; null: parts as
// they were placed.
void CountProcesses(Placement& placement, const Manifest* manifest);

// Places so that no process takes more than its budget, slots and process included. Throws Error if
// these alone take more.
Placement PlaceProcesses(const ModuleTree& tree, const PlaceOptions& options,
                         const Manifest* manifest);

// Returns the path of the budgets, a file beside the map, because the map's format is accelerate's.
std::string BudgetsPath(const std::string& map);
std::string WriteBudgets(const std::string& map_text, const std::vector<Budget>& budgets);

// Returns a warning for each rank that will take more than the budget for which the map at `path`
// was made; none if its budgets are unknown.
std::vector<std::string> ExceededBudgets(const Manifest& manifest, const DeviceMap& map,
                                         const Residence& residence, const std::string& path,
                                         bool training);

}  // namespace pipewright
