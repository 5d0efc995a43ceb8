// Says how much state optimizers keep.
#pragma once
#include "formats/optimizer_job.h"

namespace pipewright {

// Returns the number of tensors, each as large as the parameter, that the optimizer keeps for each
// parameter, without a 32-bit copy of it.
int StateTensorsPerParameter(const OptimizerJob& job);

}  // namespace pipewright
