// Draws what each rank does over one step.
#pragma once
#include <string>
#include <vector>

#include "plan/simulate/trace.h"

namespace pipewright {

struct Timeline {
  std::string name;  // "predicted", "measured"
  std::vector<TraceAction> actions;
};

// The actions of one step (-1: the last) from its start at 0. Throws Error naming `path` where it
// is not there.
std::vector<TraceAction> StepOf(const std::vector<TraceAction>& actions, int step,
                                const std::string& path);

// A row a rank and timeline, those of one rank one over the other, on one axis. What is narrower
// than a pixel is drawn together, so that the size has a bound.
std::string TimelineSvg(const std::vector<Timeline>& timelines);

}  // namespace pipewright
