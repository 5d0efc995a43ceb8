// A trace says when each action of each rank started and ended. The simulator and the runtime write
// the same format, so that predicted and measured times can be compared.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// A compute action, or any other one that took time. Times are in the costs' unit.
struct TimedAction {
  int action = 0;  // position in the rank's list
  int step = 0;    // repetition of the plan
  double start = 0, end = 0;
  // It started because event `cause` of rank `cause_rank` ended; on the same rank that is the event
  // before it. -1: it started at once.
  int cause_rank = -1, cause = -1;
};

// A message in flight. Kept only on request.
struct TraceTransfer {
  int from_rank = 0, to_rank = 0, from_stage = 0, to_stage = 0, microbatch = 0;
  bool backward = false;
  double start = 0, end = 0;
};

// The total that went from one rank to another.
struct LinkTraffic {
  int from = 0, to = 0;
  int64_t messages = 0;
  double bytes = 0;
};

struct Trace {
  std::vector<std::vector<TimedAction>> ranks;  // [rank], in order
  // [rank] LOADs that take time: beside the actions, one after the other.
  std::vector<std::vector<TimedAction>> loads;
  std::vector<TraceTransfer> transfers;
  std::vector<LinkTraffic> links;  // by (from, to); links without messages are left out
};

// One action as a run records it. Times are in any one unit; files have microseconds.
struct TraceAction {
  int rank = 0, step = 0;
  Action action;
  double start = 0, end = 0;
};

// Formats Chrome's trace-event JSON (chrome://tracing, Perfetto), with a row for each rank and
// messages as flows. Times are written unchanged; Chrome reads them as microseconds.
std::string ChromeTrace(const Plan& plan, const Trace& trace);
// Formats a run's records the same way, with `ranks` rows. ReadChromeTrace in
// plan/simulate/compare.h reads both.
std::string ChromeTrace(const std::vector<TraceAction>& actions, int ranks);

// Draws one line of text per rank, at most `columns` characters wide: digits are microbatches
// modulo 10 in F, the letters i, w, b stand for I, W and B, o for a pair, '.' for idle.
std::string TextTimeline(const Plan& plan, const Trace& trace, int columns);

}  // namespace pipewright
