// Orders made by giving every F and I a due time and letting each rank take what is due next.
#pragma once
#include <vector>

#include "plan/zb_order.h"

namespace pipewright {

// F of stage s on microbatch m is due at forward[s] + m * period, I at backward[s] + m * period; of
// what is ready and fits into its memory, a rank does what is due first. W fills the time until
// something is ready, if that is at least `patience` times W's own; and it makes room.
struct DueTimes {
  std::vector<double> forward, backward;  // [stage]
  double patience = 1;
};

// Room is kept for one microbatch in every stage that holds none, so that the oldest one can always
// go on: `ok` is false only where even that does not fit.
PlayResult PlayDue(const OrderProblem& problem, const DueTimes& due);


// Due times along the path of a microbatch, changed at random while the span falls. Deterministic.
class DueSearch {
 public:
  DueSearch(const OrderProblem& problem, unsigned seed);
  // The next order to look at; call it until enough.
  const PlayResult& Next();
  const OrderTimes& best() const { return best_times_; }

 private:
  const OrderProblem& p_;
  DueTimes best_, current_;
  OrderTimes best_times_, current_times_;
  PlayResult last_;
  double period_ = 0;
  unsigned random_;
  size_t started_ = 0;
  int since_ = 0;

  unsigned Random();
  double Uniform(double low, double high);
  DueTimes Start(size_t n) const;
  DueTimes Changed(DueTimes due);
};

}  // namespace pipewright
