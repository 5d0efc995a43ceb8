// What happened, or would: when each action of each rank started and ended. The simulator and the
// runtime write the same, so that predicted and measured lie over each other.
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
  // What let it start: event `cause` of rank `cause_rank`, on the same rank the one before it.
  // -1: nothing, it started at once.
  int cause_rank = -1, cause = -1;
};

// A message on its way. Only kept on request.
struct TraceTransfer {
  int from_rank = 0, to_rank = 0, from_stage = 0, to_stage = 0, microbatch = 0;
  bool backward = false;
  double start = 0, end = 0;
};

// What went from one rank to another, all in all.
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

// One action as a trace tells of it, whoever wrote it: what a run records. Times in any one unit;
// files have microseconds.
struct TraceAction {
  int rank = 0, step = 0;
  Action action;
  double start = 0, end = 0;
};

// Chrome's trace-event JSON (chrome://tracing, Perfetto): one line of the picture a rank; messages
// as flows. Times are written as they are, where Chrome reads microseconds.
std::string ChromeTrace(const Plan& plan, const Trace& trace);
// The same of a run's records, `ranks` lines in the picture. ReadChromeTrace in plan/simulate/compare.h
// reads both.
std::string ChromeTrace(const std::vector<TraceAction>& actions, int ranks);

// One line a rank, `columns` characters wide at most: digits are microbatches modulo 10 in F, the
// letters i, w, b stand for I, W and B, o for a pair, '.' for idle.
std::string TextTimeline(const Plan& plan, const Trace& trace, int columns);

}  // namespace pipewright
