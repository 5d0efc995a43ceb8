// Replaces the times of a profile by those that a run measured.
#pragma once
#include <string>

#include "formats/conf.h"
#include "formats/profile/profile.h"

namespace pipewright {

// Replaces the times of `profile` by those of a run's trace: Chrome's trace events, microseconds,
// whose names are actions (`2F5`). A stage's time is the median over its actions, without the first
// step where there are several; what the profile has for its nodes is scaled to that, so that a
// stage of one node has exactly the trace's time. Where the trace has no I and W, or no B, the one
// follows from the other. `conf` (checked) says which modules a stage has; nodes of stages that the
// trace does not show keep their times. Throws Error naming `path`: not such a trace, stages that
// the conf lacks, no action of any stage.
void ApplyTrace(Profile& profile, const Conf& conf, const std::string& text,
                const std::string& path);

}  // namespace pipewright
