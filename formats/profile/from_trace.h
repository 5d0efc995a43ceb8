// Replaces the times of a profile by those that a run measured.
#pragma once
#include <string>

#include "formats/conf.h"
#include "formats/profile/profile.h"

namespace pipewright {

// The trace has Chrome's trace events in microseconds, named after actions (`2F5`). A stage's time
// is the median over its actions, without the first step if there are several. The times of its
// nodes are scaled to that, so that a stage of one node gets exactly the trace's time. If the trace
// has no I and W, or no B, the one is derived from the other. `conf` (checked) has the modules of
// each stage; nodes of stages that are not in the trace keep their times. Throws Error naming
// `path` for a file that is not such a trace, for stages that the conf lacks, and if no stage has
// actions.
void ApplyTrace(Profile& profile, const Conf& conf, const std::string& text,
                const std::string& path);

}  // namespace pipewright
