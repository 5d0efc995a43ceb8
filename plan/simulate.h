// The simulator: a pure function of a plan and costs. Conventions are in docs/reference/costs.md.
//
// Each rank runs its list in order, one compute action at a time. A compute action starts when the
// rank is free and its inputs are there. SEND and RECV take no time and delay nobody: a message
// leaves when its rank reaches the SEND and arrives after latency + bytes / bandwidth. In a plan
// without transfers the stages are a chain and a message leaves when its producer ends.
#pragma once
#include <functional>
#include <vector>

#include "plan/costs.h"
#include "plan/plan.h"
#include "plan/trace.h"

namespace pipewright {

struct SimulateOptions {
  int steps = 1;             // the plan is run so many times, each rank going on at its own pace
  bool barrier = false;      // all ranks wait for each other between repetitions
  bool contention = false;   // a link (ordered pair of ranks) carries one message's bytes at a time
  bool synchronous = false;  // a rank stays at a SEND until the RECV has been posted
  bool transfers = false;    // keep Trace::transfers
  // What a compute action or a STEP takes; empty: what the costs say (plan/replay.h).
  std::function<double(int rank, int step, const Action& action)> duration;
  std::vector<char> recompute;  // stages that recompute their forward; empty: as the plan says
};

// Throws Error naming rank, position and action when the plan cannot run to its end: a deadlock, an
// input that nobody sends, an action that comes twice or before what it needs. Linear in actions.
Trace Simulate(const Plan& plan, const Costs& costs, const SimulateOptions& options = {});

struct RankFigures {
  double first = 0, last = 0;    // of compute actions; 0 where there are none
  double busy = 0;               // compute only
  double idle = 0;               // makespan - busy
  double span = 0;               // last - start of the first F
  int64_t peak_activations = 0;  // forwards whose I or B has not ended, counted
  double peak_bytes = 0;         // activations, what is kept for W, and weights
  size_t peak_position = 0;      // the action at which they are reached
  double bubble_rate(double makespan) const { return makespan > 0 ? idle / makespan : 0; }
  double span_bubble_rate() const { return span > 0 ? (span - busy) / span : 0; }
};

struct Figures {
  double makespan = 0;  // from t = 0 to the last end
  double span = 0;      // the largest of the ranks'
  std::vector<RankFigures> ranks;
};

Figures Measure(const Plan& plan, const Costs& costs, const Trace& trace,
                const SimulateOptions& options = {});

struct EventId {
  int rank = 0, event = 0;
};

// The chain of events, each started by the one before it, that ends at the makespan.
std::vector<EventId> CriticalPath(const Trace& trace);

// How long a compute action keeps its rank.
double Duration(const Action& action, int rank, const Costs& costs,
                const std::vector<char>& recompute = {});

}  // namespace pipewright
