// Applies the dispatch rules of zb-auto: a script of F and I with W filled in, and due times.
#pragma once
#include <array>
#include <vector>

#include "plan/schedules/dispatch.h"

namespace pipewright {

// Runs a script of F and I. A W runs if the wait for the next F or I is at least `gap_share` of the
// W's own time, if memory is short, and at the end. If a forward does not fit, the next I goes
// first; `ok` is false if that does not fit either.
TimedOrder PlayScript(const OrderProblem& problem, const RankOrders& script, double gap_share);

// F of stage s on microbatch m is due at forward[s] + m * period, I at backward[s] + m * period,
// where the period is the work of the busiest rank for one microbatch. A rank runs the action that
// is due first among those that are ready and fit into its memory. A W runs in gaps of at least
// `gap_share` of its own time, and to free memory.
struct DueTimes {
  static constexpr int kKnots = 5;
  std::vector<double> forward, backward;  // [stage]
  std::array<double, kKnots> gap_share{};  // from the first microbatches to the last
  // A rank stays idle for at most this long to wait for an action that is due earlier.
  std::array<double, kKnots> linger{};
  // By stage: added to the due times of the first (in) and last (out) microbatches; it decays
  // toward those in the middle.
  std::vector<double> forward_in, backward_in, forward_out, backward_out;
  double lead = 1e300;  // an F starts at most this long before it is due
  double first = 1;     // the share of the start-up's forwards that a rank runs before all else
};

// Runs the actions by due times. Each rank begins with the forwards of `start_up` (StartUp in
// patterns.h). Memory is reserved for one microbatch in every stage that holds none, so that the
// oldest one can always proceed; `ok` is false if even that does not fit, and as soon as a rank's
// span must exceed `limit`. Stages must not have replicas.
TimedOrder PlayDue(const OrderProblem& problem, const DueTimes& due, const RankOrders& start_up,
                   double limit = kNever);

// Returns the work of the busiest rank for one microbatch.
double Period(const OrderProblem& problem);
// Returns the number of times that the chain of stages passes over the ranks.
int PassesOverRanks(const OrderProblem& problem);

}  // namespace pipewright
