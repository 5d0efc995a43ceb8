// The simulator: a pure function of a plan and costs. Conventions are in docs/reference/costs.md.
//
// Each rank runs its list in order, one compute action at a time. A compute action starts when the
// rank is free and its inputs have arrived. SEND and RECV take no time and delay nobody: a message
// leaves when its rank reaches the SEND and arrives after latency + bytes / bandwidth. In a plan
// without transfers a message leaves when its producer ends.
#pragma once
#include <functional>
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/trace.h"

namespace pipewright {

struct SimulateOptions {
  int steps = 1;             // repetitions of the plan; each rank proceeds at its own pace
  bool barrier = false;      // all ranks wait for each other between repetitions
  bool contention = false;   // a link (ordered pair of ranks) carries one message's bytes at a time
  bool synchronous = false;  // a rank stays at a SEND until the RECV has been posted
  // The time of a compute action or a STEP; empty: from the costs
  // (plan/simulate/costs_from_trace.h).
  std::function<double(int rank, int step, const Action& action)> duration;
  std::vector<char> recompute;  // stages that recompute their forward; empty: as the plan says
  const StageGraph* graph = nullptr;  // edges of a plan without transfers; null: a chain
};

// Simulates the plan in time linear in its actions. Throws Error naming rank, position and action
// if it cannot run to its end: for a deadlock, an input that no rank sends, or an action that comes
// twice or before what it needs.
ActionTrace Simulate(const Plan& plan, const Costs& costs, const SimulateOptions& options = {});

// Returns the time for which a compute action occupies its rank.
double Duration(const Action& action, int rank, const Costs& costs,
                const std::vector<char>& recompute = {});

}  // namespace pipewright
