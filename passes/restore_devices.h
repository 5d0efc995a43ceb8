// Replaces devices that the export burned in by the rank's device.
#pragma once
#include "passes/graph/model.h"

namespace pipewright {

// Every device constant becomes the module's `device`: a module runs entirely on its rank's device.
void RestoreDevices(Model& model);

}  // namespace pipewright
