// A trace has the start and end of each action of each rank. The simulator and the runtime write
// the same format, so that predicted and measured times can be compared.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/costs.h"

namespace pipewright {

// A compute action, or any other one that took time. Times are in the costs' unit.
struct TimedAction {
  int action = 0;  // position in the rank's list
  int step = 0;    // repetition of the plan
  double start = 0, end = 0;
  // It started because event `cause` of rank `cause_rank` ended; on the same rank that is the event
  // before it. -1: it started at once.
  int cause_rank = -1, cause = -1;
  double resident = 0;  // bytes of the process at the end, of a measured trace; 0: unknown
};

// The total that went from one rank to another.
struct LinkTraffic {
  int from = 0, to = 0;
  int64_t messages = 0;
  double bytes = 0;
};

struct ActionTrace {
  std::vector<std::vector<TimedAction>> ranks;  // [rank], in order
  // [rank] LOADs that take time; they run concurrently with the actions, one after the other.
  std::vector<std::vector<TimedAction>> loads;
  std::vector<LinkTraffic> links;  // by (from, to); links without messages are left out
};

// One action as a run records it. Times are in any one unit; files have microseconds.
struct TraceAction {
  int rank = 0, step = 0;
  Action action;
  double start = 0, end = 0;
};

// Returns the events of one rank, or of all ranks in turn, with their actions. Their steps count
// the optimizer steps of all repetitions.
std::vector<TraceAction> ActionsOf(const Plan& plan, size_t rank,
                                   const std::vector<TimedAction>& events);
std::vector<TraceAction> ActionsOf(const Plan& plan, const ActionTrace& trace);

// Writes the Trace Event Format, which chrome://tracing and Perfetto read: a row for each rank, and
// flows from the action that makes a value or a gradient to the one on another rank that uses it
// (in a plan without transfers, from each stage to the next). With `costs`, what each rank holds
// in memory is a counter, and so is what was resident in a measured trace. Times are written unchanged; the format's are microseconds.
// ReadChromeTrace in plan/simulate/compare.h reads it.
// Source: "Trace Event Format", Google, 2016 (phases M, X, C, s and f).
std::string ChromeTrace(const Plan& plan, const ActionTrace& trace, const Costs* costs = nullptr);

// Returns how long a character of TextTimeline is, in the unit of the trace.
double TimelineColumn(const ActionTrace& trace, int columns);
// Draws one line of text per rank, at most `columns` characters wide: digits are microbatches
// modulo 10 in F, the letters i, w, b stand for I, W and B, o for a pair, '.' for idle.
std::string TextTimeline(const Plan& plan, const ActionTrace& trace, int columns);

}  // namespace pipewright
