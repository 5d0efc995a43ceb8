// `train --tune`: runs a job as tune found best.
#pragma once
#include <string>

#include "runtime/commands/run_options.h"

namespace CLI {
class App;
}

namespace pipewright {

void AddTune(CLI::App& app);

// With --tune: replaces job, conf and number of ranks by those of a result for this package, job,
// ranks, hosts and memory limit, and tunes first if there is none. A run that resumes takes the
// result that its checkpoints are made with. Makes this process start the ranks if mpirun has, and
// ends the others by throwing CLI::RuntimeError. Throws UsageError and Error.
void UseTuned(RunOptions& options, bool quiet);

}  // namespace pipewright
