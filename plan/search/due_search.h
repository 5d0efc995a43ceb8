// Searches for good due times (plan/search/dispatch.h).
#pragma once
#include <vector>

#include "plan/search/dispatch.h"

namespace pipewright {

// Starts from due times along the path of a microbatch and changes them at random while the span
// falls. Deterministic; a copy with another seed continues differently.
class DueSearch {
 public:
  static constexpr size_t kStarts = 96;

  // Tries `starts` due times (at most kStarts) before it begins to change the best.
  DueSearch(const OrderProblem& problem, size_t starts, unsigned seed);
  // Tries one more order and returns it.
  const TimedOrder& Next();
  void Reseed(unsigned seed) { random_ = seed * 2654435761u + 1; }
  bool starting() const { return started_ < starts_; }
  // Returns the times of the order with the least span so far; not `ok` until one fits in memory.
  const OrderTimes& best() const { return best_times_; }
  // Returns the number of actions in the last order when it ended or was given up.
  long played() const { return played_; }

 private:
  const OrderProblem* p_;
  size_t starts_, started_ = 0;
  RankOrders start_up_;
  double period_ = 0;
  DueTimes best_, current_;
  OrderTimes best_times_, current_times_;
  TimedOrder last_;
  unsigned random_;
  int since_ = 0;
  long played_ = 0;

  unsigned Random();
  double Uniform(double low, double high);
  DueTimes Start(size_t n) const;
  DueTimes Changed(DueTimes due);
};

}  // namespace pipewright
