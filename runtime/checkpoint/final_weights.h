// Saves the weights when a run ends.
#pragma once
#include <string>

#include "runtime/session.h"

namespace pipewright {

// Returns warnings for rank 0 to print before training if the weights would be lost at its end:
// nothing saves them, or the disk has no room for `save` or a checkpoint.
std::vector<std::string> WarningsOfLoss(const Job& job, const Manifest& manifest);

// Saves the weights where the job says. If that fails, saves them in a temporary folder, unless a
// checkpoint of the last step has them (`checkpoint`: its folder). Returns an error that says why
// it failed and where the weights are now, or "" on success. Collective; returns the same on every
// rank.
std::string SaveFinalWeights(Session& session, const std::string& checkpoint);

// Saves the weights in a temporary folder, as a file called `name`, and returns a line that says
// where they are, or that they are lost. Collective; returns the same on every rank.
std::string SaveElsewhere(Session& session, const std::string& name);

}  // namespace pipewright
