// Devices that the export burned in become the rank's device.
#pragma once
#include "passes/model.h"

namespace pipewright {

// Every device constant becomes the module's `device`: a module runs wholly on its rank's device.
void RestoreDevices(Model& model);

}  // namespace pipewright
