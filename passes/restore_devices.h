// Replaces the devices that a model file names, or reads from tensors, by the rank's device.
#pragma once
#include "passes/graph/model.h"

namespace pipewright {

// Replaces every device constant and every x.device by the module's `device`: a module runs
// entirely on its rank's device.
void RestoreDevices(Model& model);

}  // namespace pipewright
