// Computes from a trace how each rank spent its time and how much memory it held.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/simulate.h"
#include "plan/simulate/trace.h"

namespace pipewright {

struct RankFigures {
  double first = 0, last = 0;    // times of compute actions; 0 if there are none
  double busy = 0;               // compute only
  double idle = 0;               // makespan - busy
  double span = 0;               // last - start of the first F
  int64_t peak_activations = 0;  // number of forwards whose I or B has not ended
  double held_bytes = 0;         // weights in memory from the start
  // The most bytes held: weights, activations, tensors kept for W, weight gradients, messages from
  // their RECV on, and memory that an action takes while it runs.
  double peak_bytes = 0;
  size_t peak_position = 0;      // the action that reaches the peak
  double bubble_rate(double makespan) const { return makespan > 0 ? idle / makespan : 0; }
  // Sums are rounded, so `busy` may exceed `span` on a rank that never waits.
  double span_bubble_rate() const { return busy < span ? (span - busy) / span : 0; }
};

struct Figures {
  double makespan = 0;  // from t = 0 to the last end
  double span = 0;      // the largest of the ranks'
  std::vector<RankFigures> ranks;
};

Figures Measure(const Plan& plan, const Costs& costs, const ActionTrace& trace,
                const SimulateOptions& options = {});

struct EventId {
  int rank = 0, event = 0;
};

// Returns the critical path: the chain of events, each started by the one before it, that ends at
// the makespan.
std::vector<EventId> CriticalPath(const ActionTrace& trace);

}  // namespace pipewright
