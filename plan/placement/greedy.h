// The placement of accelerate 1.15 (infer_auto_device_map), with its known failures repaired.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/placement/budgets.h"
#include "plan/placement/device_map.h"
#include "plan/placement/module_tree.h"

namespace pipewright {

struct DeviceChoice {
  std::string name, device, why;
};

struct GreedyResult {
  std::vector<DeviceChoice> assignments;  // in the order made; each name once
  std::vector<int64_t> reserved;        // by budget: kept free for the largest layer to visit
  std::map<std::string, int64_t>
      too_small;                      // device that got nothing -> bytes it would have needed
  std::vector<std::string> unplaced;  // names that no device took
};

// One pass in the order of the model over the devices in their order; none is revisited. On the
// first accelerator and on cpu the largest layer still to place is kept free, so that a layer that
// lies elsewhere can be brought in. What does not fit is split into its tensors and children; tied
// modules are placed together, or split until they can be. `fallback`: a device that would get
// nothing takes the first module that fits, each before what it consists of.
//
// Other than accelerate: buffers of split modules are placed; a tied weight counts once, in
// whatever order its holders come and however many of its names a holder has; weights tied through
// several groups stay together; disk keeps to its budget.
GreedyResult PlaceGreedily(const ModuleTree& tree, const std::vector<Budget>& budgets,
                           const std::vector<std::string>& no_split, bool fallback);

}  // namespace pipewright
