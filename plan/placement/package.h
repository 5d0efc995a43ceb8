// Turns a package's modules into a tree for placement, and a device map into a conf.
#pragma once
#include <string>

#include "formats/conf.h"
#include "formats/manifest.h"
#include "plan/placement/device_map.h"
#include "plan/placement/tree/module_tree.h"

namespace pipewright {

// Returns a tree whose root has the package's modules (module0, ...) as children, each a layer that
// is not split. A weight of module0 is called module0.NAME. Weights that several modules use
// (TensorIds) are one tensor.
ModuleTree TreeOfPackage(const Manifest& manifest);

// Returns the conf with which the package runs as a pipeline over the map's devices: one rank per
// device, in the order of their numbers, then cpu, which comes first if the first module is on it;
// a stage is a run of modules on one device. The map names modules of the package (module0) or of
// the source model ("blocks.3"). A module without weights that no key covers goes to the rank of
// the module before it; so does one on disk, as an offloaded stage of its own. Errors and warnings
// are those of DevicesOfWeights; throws Error naming `path` also for a module on several devices.
Conf ConfOfDeviceMap(const Manifest& manifest, const DeviceMap& map, const std::string& path,
                     std::vector<std::string>& warnings);

}  // namespace pipewright
