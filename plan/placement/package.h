// Turns a package's modules into a tree for placement, and a device map into a conf.
#pragma once
#include <string>

#include "formats/conf.h"
#include "formats/manifest.h"
#include "plan/placement/device_map.h"
#include "plan/placement/module_tree.h"

namespace pipewright {

// The root's children are the package's modules (module0, ...), each a layer that is not split; a
// weight of module0 is called module0.NAME. What several modules use (TensorIds) is one tensor.
ModuleTree TreeOfPackage(const Manifest& manifest);

// Returns the conf under which the package runs as a pipeline over the map's devices: one rank a
// device, in the order of their first modules; a stage is a run of modules on one device. The map
// names modules of the package (module0) or of the source model ("blocks.3"); a module of the
// package that is on no device goes where the one before it is, and so does one on disk, as an
// offloaded stage of its own. Throws Error naming `path`: a module on several devices.
Conf ConfOfDeviceMap(const Manifest& manifest, const DeviceMap& map, const std::string& path);

}  // namespace pipewright
