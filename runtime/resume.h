// Reads checkpoints of a run back, on any number of ranks.
#pragma once
#include <string>

#include "formats/weights/run_checkpoint.h"
#include "runtime/session.h"

namespace pipewright {

// Reads the newest checkpoint in `from` (a checkpoint or a folder of them) that holds into the
// session's stages; of those that do not, rank 0 shows which file and why. Returns its description;
// one without a path where there is none. `apart`: hosts do not share the folder, and each has the
// shards of its own ranks. Collective; throws the same Error on every rank.
RunCheckpoint Resume(const std::string& from, Session& session, bool apart = false);

}  // namespace pipewright
