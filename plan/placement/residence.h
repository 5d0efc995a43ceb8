// Applies a device map to a run of a package: says which weights stay in memory, which come from
// disk with every sweep, and the conf for that.
#pragma once
#include <string>
#include <vector>

#include "formats/conf.h"
#include "formats/manifest.h"
#include "plan/placement/device_map.h"

namespace pipewright {

struct Residence {
  Conf conf;                               // what has weights on disk is an offloaded stage
  std::vector<std::vector<bool>> on_disk;  // [module][ModuleInfo::held]
  std::vector<std::string> warnings;
};

// The map names modules of the package (module0), modules or tensors of the source model
// ("blocks.3"), or both; of several keys that cover a name the longest counts. Devices 0, 1, ...
// and cpu are memory. Each numbered device is a rank, in numeric order; what lies on cpu or disk
// computes on the rank of the module before it. `ranks` 1 runs everything on one, 0 takes as many
// as the map needs. Constants and buffers outside the state dict that no key covers go with the
// module's other weights. Throws Error naming `path`: parameters or buffers without a device, keys
// within keys, a module on two numbered devices, another number of ranks. Unknown keys are
// warnings.
Residence ReadResidence(const Manifest& manifest, const DeviceMap& map, const std::string& path,
                        int ranks);

// Finds all that ReadResidence would refuse or warn of in a map; split_ties stays empty.
MapProblems CheckDeviceMap(const Manifest& manifest, const DeviceMap& map);

// For runs that train. Throws Error naming `path` where all parameters that a key puts on disk are
// trained.
void CheckFrozen(const Manifest& manifest, const DeviceMap& map, const std::string& path);

// Marks the weights of the conf's offloaded stages, all of which are on disk.
std::vector<std::vector<bool>> WeightsOfStages(const Manifest& manifest, const Conf& conf);

// Returns the bytes of a weight.
int64_t BytesOf(const WeightInfo& weight);

}  // namespace pipewright
