// Figures of a trace: what each rank did with its time and its memory.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/simulate.h"
#include "plan/simulate/trace.h"

namespace pipewright {

struct RankFigures {
  double first = 0, last = 0;    // of compute actions; 0 where there are none
  double busy = 0;               // compute only
  double idle = 0;               // makespan - busy
  double span = 0;               // last - start of the first F
  int64_t peak_activations = 0;  // forwards whose I or B has not ended, counted
  double held_bytes = 0;         // weights that are there from the start
  // Those, activations, what is kept for W, weight gradients, messages from their RECV on, and what
  // an action takes for a moment.
  double peak_bytes = 0;
  size_t peak_position = 0;      // the action at which they are reached
  double bubble_rate(double makespan) const { return makespan > 0 ? idle / makespan : 0; }
  // Sums are rounded, and busy may come out above span where the rank never waits.
  double span_bubble_rate() const { return busy < span ? (span - busy) / span : 0; }
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

}  // namespace pipewright
