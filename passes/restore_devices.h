// Replaces devices that a model file names or asks tensors for by the rank's device.
#pragma once
#include "passes/graph/model.h"

namespace pipewright {

// Every device constant and every x.device becomes the module's `device`: a module runs entirely on
// its rank's device.
void RestoreDevices(Model& model);

}  // namespace pipewright
