// The dispatch rules of zb-auto: a script of F and I into which W are filled, and due times.
#pragma once
#include <array>
#include <vector>

#include "plan/schedules/dispatch.h"

namespace pipewright {

// Plays a list of F and I through; W runs where the next of them is not there yet for at least
// `patience` times its own time, where memory asks for it, and at the end. A forward that does not
// fit lets the next I go first. `ok` is false when even that is stuck.
TimedOrder PlayScript(const OrderProblem& problem, const RankOrders& script, double patience);

// F of stage s on microbatch m is due at forward[s] + m * period, I at backward[s] + m * period,
// the period being what the busiest rank works for one microbatch. Of what is ready and fits into
// its memory, a rank does what is due first. W fills the time until something is ready, if that is
// at least a share of W's own, and makes room.
struct DueTimes {
  static constexpr int kKnots = 5;
  std::vector<double> forward, backward;  // [stage]
  std::array<double, kKnots> patience{};  // that share
  // A rank stays idle so long for something that is due earlier.
  std::array<double, kKnots> linger{};
  // By stage, added for the first and for the last microbatches, falling off towards the others.
  std::vector<double> forward_in, backward_in, forward_out, backward_out;
  double lead = 1e300;  // no F starts earlier than so long before it is due, time 0 being the start
  double first = 1;     // which share of the start-up's forwards a rank runs before all else
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
