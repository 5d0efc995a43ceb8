// Replaces training flags that the export recorded as constants by the module's `training`.
#pragma once
#include "passes/graph/model.h"

namespace pipewright {

// Replaces arguments `train` and `training` that were exported as True (dropout, batch norm, RNNs,
// rrelu; `use_input_stats` of instance norm with running statistics) by `training`; batch counters
// count only in training. Flags exported as False stay: they belong to frozen layers, or the whole
// model was exported in evaluation mode, which Model::in_training then records.
void RestoreTraining(Model& model);

}  // namespace pipewright
