// Applies a device map to a run of a package: finds the weights that stay in memory, those that are
// read from disk in every sweep, and the conf for that.
#pragma once
#include <string>
#include <vector>

#include "formats/conf.h"
#include "formats/manifest.h"
#include "plan/placement/device_map.h"

namespace pipewright {

struct Residence {
  Conf conf;                               // modules with weights on disk are offloaded stages
  std::vector<std::vector<bool>> on_disk;  // [module][ModuleInfo::held]
  std::vector<std::string> warnings;
};

// Reads a map that names modules of the package (module0), modules or tensors of the source model
// ("blocks.3"), or both. If several keys cover a name, the longest counts. Devices 0, 1, ... and
// cpu are memory. Each numbered device is a rank, in numeric order; modules on cpu or disk run on
// the rank of the module before them. `ranks` 1 runs everything on one, 0 takes as many as the map
// needs. Constants and buffers outside the state dict that no key covers go with the module's other
// weights. Throws Error naming `path` for parameters or buffers without a device, keys within keys,
// a module on two numbered devices, and another number of ranks. Unknown keys are warnings.
Residence ReadResidence(const Manifest& manifest, const DeviceMap& map, const std::string& path,
                        int ranks);

// Returns the device of each weight ([module][ModuleInfo::held]); "" for constants and buffers
// outside the state dict that no key covers. Adds a warning for each unknown key. Throws Error
// naming `path` for parameters or buffers without a device, and keys within keys.
std::vector<std::vector<std::string>> DevicesOfWeights(const Manifest& manifest,
                                                       const DeviceMap& map,
                                                       const std::string& path,
                                                       std::vector<std::string>& warnings);

// Finds all errors and warnings of ReadResidence in a map; leaves split_ties empty.
MapProblems CheckPackageMap(const Manifest& manifest, const DeviceMap& map);

// Checks a map for a run that trains. Throws Error naming `path` if all parameters that a key puts
// on disk are trained.
void CheckFrozen(const Manifest& manifest, const DeviceMap& map, const std::string& path);

// Returns a mark for each weight of the conf's offloaded stages, all of which are on disk.
std::vector<std::vector<bool>> WeightsOfStages(const Manifest& manifest, const Conf& conf);

// Returns the bytes of a weight.
int64_t BytesOf(const WeightInfo& weight);

}  // namespace pipewright
