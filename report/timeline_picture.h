// Draws the actions of each rank over one step.
#pragma once
#include <string>
#include <vector>

#include "plan/simulate/trace.h"

namespace pipewright {

struct Timeline {
  std::string name;  // "predicted", "measured"
  std::vector<TraceAction> actions;
};

// Returns the actions of one step (-1: the last), which starts at time 0. Throws Error naming
// `path` if there is no such step.
std::vector<TraceAction> StepOf(const std::vector<TraceAction>& actions, int step,
                                const std::string& path);

// Draws one row per rank and timeline on one axis, with a rank's rows next to each other. Merges
// actions narrower than a pixel, which limits the size of the picture. `units` is a caption that
// says in which unit times are.
std::string TimelineSvg(const std::vector<Timeline>& timelines, const std::string& units);

}  // namespace pipewright
