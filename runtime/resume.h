// Reads checkpoints of a run back, on any number of ranks.
#pragma once
#include <string>

#include "plan/run_checkpoint.h"
#include "runtime/session.h"

namespace pipewright {

// Reads the newest valid checkpoint in `from` (a checkpoint or a folder of them) into the session's
// stages; rank 0 shows which others are damaged and why. Returns its description, without a path if
// there is none. Collective; throws the same Error on every rank.
RunCheckpoint Resume(const std::string& from, Session& session, Transport& transport);

}  // namespace pipewright
