// Places a model as accelerate 1.15 does (infer_auto_device_map), with its known bugs fixed.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/placement/budgets.h"
#include "plan/placement/device_map.h"
#include "plan/placement/tree/module_tree.h"

namespace pipewright {

struct DeviceChoice {
  std::string name, device, why;
};

struct GreedyResult {
  std::vector<DeviceChoice> assignments;  // in the order made; each name once
  std::vector<int64_t> reserved;          // by budget: kept free to load the largest layer
  std::map<std::string, int64_t>
      too_small;                      // device that got nothing -> bytes it would have needed
  std::vector<std::string> unplaced;  // names that no device took
};

// Makes one pass over the model and the devices, both in order; no device is revisited. The first
// accelerator and cpu keep room for the largest layer still to place, so that layers from elsewhere
// can be loaded there. A module that does not fit is split into its tensors and children; tied
// modules are placed together, or split until they can be. `fallback`: a device that would get
// nothing takes the first module that fits, where a module comes before its parts.
//
// Unlike accelerate, places buffers of split modules; counts a tied weight once, in whatever order
// its holders come and however many of its names a holder has; keeps weights together that are tied
// through several groups; and respects the budget of disk.
GreedyResult PlaceGreedily(const ModuleTree& tree, const std::vector<Budget>& budgets,
                           const std::vector<std::string>& no_split, bool fallback);

}  // namespace pipewright
