// The dispatch rules of zb-auto: a script of F and I into which W are filled, and due times.
#pragma once
#include <array>
#include <vector>

#include "plan/schedules/dispatch.h"

namespace pipewright {

// Plays a list of F and I. W runs in gaps: where the wait for the next F or I is at least
// `gap_share` of W's own time, where memory is short, and at the end. A forward that does not fit
// lets the next I go first; `ok` is false where not even that can go on.
TimedOrder PlayScript(const OrderProblem& problem, const RankOrders& script, double gap_share);

// F of stage s on microbatch m is due at forward[s] + m * period, I at backward[s] + m * period,
// where the period is the work of the busiest rank for one microbatch. A rank runs the action that
// is due first among those that are ready and fit into its memory. W fills gaps that are at least a
// share of W's own time, and makes room.
struct DueTimes {
  static constexpr int kKnots = 5;
  std::vector<double> forward, backward;  // [stage]
  std::array<double, kKnots> gap_share{};  // from the first microbatches to the last
  // A rank stays idle for at most this long to wait for an action that is due earlier.
  std::array<double, kKnots> linger{};
  // By stage: what is added for the first and for the last microbatches; it decays towards the
  // rest.
  std::vector<double> forward_in, backward_in, forward_out, backward_out;
  double lead = 1e300;  // an F starts at most so long before it is due
  double first = 1;     // the share of the start-up's forwards that a rank runs before all else
};

// `start_up`: each rank begins with these forwards (StartUp in patterns.h). Room is kept
// for one microbatch in every stage that holds none, so that the oldest one can always go on; `ok`
// is false where even that does not fit, and as soon as a rank's span must exceed `limit`. No
// replicas.
TimedOrder PlayDue(const OrderProblem& problem, const DueTimes& due, const RankOrders& start_up,
                   double limit = kNever);

// Returns the work of the busiest rank for one microbatch.
double Period(const OrderProblem& problem);
// Returns how many times the stages go over the ranks.
int Passes(const OrderProblem& problem);

}  // namespace pipewright
