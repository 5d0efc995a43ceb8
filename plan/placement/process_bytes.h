// Computes the bytes that the processes of a run take at their peak: weights, the slots through
// which weights travel from disk, and the process itself. Keeps the budgets that a device map was
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

// A process of pipewright-run takes so much without tensors: programs, LibTorch's code and data,
// MPI. It is the most that was resident in a run of a model with few weights, 117 MB, rounded up.
inline constexpr int64_t kProcessBytes = 120'000'000;

// Weights come from disk into two slots of the rank that computes with them, each as large as what
// travels at once; one is enough where only one thing travels.
struct RankWeights {
  int64_t resident = 0;  // bytes, each tensor once
  int64_t slots = 0;
};
// By rank of `residence`. `training` as in TensorIds.
std::vector<RankWeights> WeightsOfRanks(const Manifest& manifest, const Residence& residence,
                                        bool training);

// Fills slots and process of the placement's budgets: a numbered device is a process, and so is cpu
// where there are none. For a package, `manifest` says what travels at once: its modules; null:
// parts as they were placed.
void CountProcesses(Placement& placement, const Manifest* manifest);

// Places so that no process takes more than its budget, slots and process included. Throws Error
// where these alone take more.
Placement PlaceProcesses(const ModuleTree& tree, const PlaceOptions& options,
                         const Manifest* manifest);

// The budgets stand in a file beside the map, because the map itself is accelerate's.
std::string BudgetsPath(const std::string& map);
std::string WriteBudgets(const std::string& map_text, const std::vector<Budget>& budgets);

// Returns a warning for each rank that will take more than the budget for which the map at `path`
// was made. None where its budgets are not known.
std::vector<std::string> ExceededBudgets(const Manifest& manifest, const DeviceMap& map,
                                         const Residence& residence, const std::string& path,
                                         bool training);

}  // namespace pipewright
