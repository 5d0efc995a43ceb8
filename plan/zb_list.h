// Orders made by giving every F and I a due time and letting each rank take what is due next.
#pragma once
#include <array>
#include <vector>

#include "plan/zb_order.h"

namespace pipewright {

// F of stage s on microbatch m is due at forward[s] + m * period, I at backward[s] + m * period,
// the period being what the busiest rank works for one microbatch. Of what is ready and fits into
// its memory, a rank does what is due first. W fills the time until something is ready, if that is
// at least a share of W's own, and makes room.
struct DueTimes {
  static constexpr int kKnots = 5;
  std::vector<double> forward, backward;  // [stage]
  std::array<double, kKnots> patience{};  // that share
  std::array<double, kKnots>
      linger{};  // a rank stays idle so long for something that is due earlier
  // By stage, added for the first and for the last microbatches, falling off towards the others.
  std::vector<double> forward_in, backward_in, forward_out, backward_out;
  // By pass of the stages over the ranks and by microbatch, added too.
  std::vector<double> forward_own, backward_own;
  double lead = 1e300;  // no F starts earlier than so long before it is due, time 0 being the start
  double first = 1;     // which share of the start-up's forwards a rank runs before all else
};

// By how much the ranks' spans exceed a goal: the root of the mean square. The largest count most,
// but where one rank decides the span, the others show the way.
double Excess(const std::vector<double>& spans, double goal);

struct DueResult : PlayResult {
  std::vector<double> spans;  // [rank]
};

// `start_up`: the forwards with which each rank begins (StartUp in plan/zb_scripts.h). Room is kept
// for one microbatch in every stage that holds none, so that the oldest one can always go on; `ok`
// is false where even that does not fit, and where the excess over `goal` must exceed `limit`: it
// stops there. No replicas.
DueResult PlayDue(const OrderProblem& problem, const DueTimes& due, const Order& start_up,
                  double goal = 0, double limit = 1e300);

// Due times along the path of a microbatch, changed at random while the span falls. Deterministic.
// A copy with another seed goes another way from here.
class DueSearch {
 public:
  static constexpr size_t kStarts = 96;

  // `starts`: how many due times are tried before the best is changed; at most kStarts.
  DueSearch(const OrderProblem& problem, size_t starts, unsigned seed);
  // Judges by the excess of all ranks over `bound`, a span that nothing beats, and changes single
  // microbatches' due times too: slower at first, but it goes further. Call it before Next.
  void JudgeAll(double bound) { bound_ = bound; }
  // The next order to look at; call it until enough.
  const DueResult& Next();
  void Reseed(unsigned seed) { random_ = seed * 2654435761u + 1; }
  bool starting() const { return started_ < starts_; }
  // The least span met, if any fitted into the memory (judging all ranks: of the least excess).
  const OrderTimes& best() const { return best_times_; }
  // How many actions the last one had when it ended or was given up.
  long played() const { return played_; }

 private:
  const OrderProblem* p_;
  size_t starts_, started_ = 0;
  Order start_up_;
  double period_ = 0;
  DueTimes best_, current_;
  OrderTimes best_times_, current_times_;
  double bound_ = -1, goal_ = 0, least_span_ = 1e300;
  std::vector<double> best_spans_, current_spans_;
  double best_excess_ = 1e300, current_excess_ = 1e300;
  DueResult last_;
  unsigned random_;
  int since_ = 0;
  long played_ = 0;

  unsigned Random();
  double Uniform(double low, double high);
  DueTimes Start(size_t n) const;
  DueTimes Changed(DueTimes due);
  void ChangeOne(DueTimes& due, int pass, int passes, double change);
  void SetGoal(double least_span);
};

}  // namespace pipewright
