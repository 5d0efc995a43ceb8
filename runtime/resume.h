// Reads checkpoints of a run back, on any number of ranks.
#pragma once
#include <string>

#include "formats/weights/run_checkpoint.h"
#include "runtime/session.h"

namespace pipewright {

// Reads the newest valid checkpoint in `from` (a checkpoint or a folder of them) into the session's
// stages; rank 0 shows what is wrong with invalid ones. Returns its description, or one without a
// path if there is none. `apart`: hosts do not share the folder, and each has the shards of its own
// ranks. Collective; throws the same Error on every rank.
RunCheckpoint Resume(const std::string& from, Session& session, bool apart = false);

}  // namespace pipewright
