#include "plan/search/due_search.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "plan/search/patterns.h"

namespace pipewright {

DueSearch::DueSearch(const OrderProblem& problem, size_t starts, unsigned seed)
    : p_(&problem),
      starts_(std::clamp<size_t>(starts, 1, kStarts)),
      start_up_(StartUp(problem)),
      period_(Period(problem)),
      random_(0) {
  Reseed(seed);
  current_ = Start(0);
}

unsigned DueSearch::Random() {
  random_ ^= random_ << 13, random_ ^= random_ >> 17, random_ ^= random_ << 5;
  return random_;
}

double DueSearch::Uniform(double low, double high) {
  return low + (high - low) * (Random() % 65536) / 65536;
}

// Sets due times along a microbatch's path at its full speed or faster, and delays all I.
DueTimes DueSearch::Start(size_t n) const {
  constexpr double kSpeed[] = {1, 0.5, 0.1, 0};  // the best first, by trial
  constexpr double kLinger[] = {0.1, 0};
  constexpr double kLater[] = {3, 1, 0};
  DueTimes due;
  // In the steady state a rank always has other work, so it need not wait.
  due.gap_share.fill(0), due.linger.fill(0);
  due.gap_share.front() = due.gap_share.back() = 0.7;
  for (auto* list : {&due.forward_in, &due.backward_in, &due.forward_out, &due.backward_out})
    list->assign(p_->stages, 0);
  double up = kSpeed[n % 4], down = kSpeed[n / 4 % 4], later = kLater[n / 32 % 3];
  due.linger.front() = due.linger.back() =
      kLinger[n / 16 % 2] * p_->costs[0].F;
  double time = 0;
  for (int s = 0; s < p_->stages; ++s) {
    due.forward.push_back(time * up - 1e-6 * period_ * s);
    time += p_->costs[s].F + (s + 1 < p_->stages ? p_->up[s] : 0);
  }
  double turn = time, back = 0;
  due.backward.resize(p_->stages);
  for (int s = p_->stages; s-- > 0;) {
    double rank = 1e-6 * period_ * (2 * p_->stages - s);  // breaks ties: the later stage first
    due.backward[s] = turn * up + later * period_ + back * down - rank;
    back += p_->costs[s].I + (s > 0 ? p_->down[s - 1] : 0);
  }
  return due;
}

DueTimes DueSearch::Changed(DueTimes due) {
  double much = period_ * std::pow(2.0, -static_cast<double>(Random() % 8)) * 2;
  int passes = PassesOverRanks(*p_);
  for (unsigned left = 1 + Random() % 2; left > 0; --left) {
    std::vector<double>* lists[] = {&due.forward,     &due.backward,    &due.forward,
                                    &due.backward,    &due.forward_in,  &due.backward_in,
                                    &due.forward_out, &due.backward_out};
    std::vector<double>& list = *lists[Random() % 8];
    size_t knot = Random() % DueTimes::kKnots, knots = 1 + Random() % 3;
    double change = Uniform(-much, much);
    int pass = static_cast<int>(Random() % static_cast<unsigned>(passes));
    int first = p_->stages * pass / passes, last = p_->stages * (pass + 1) / passes;
    switch (Random() % 8) {
      case 0:  // all stages of one pass over the ranks
        for (int s = first; s < last; ++s) list[s] += change;
        break;
      case 1:  // the slope of one pass
        for (int s = first; s < last; ++s) list[s] += change * (s - first) / (last - first);
        break;
      case 2:  // one stage
        list[Random() % list.size()] += change;
        break;
      case 3:  // one stage and all after it
        for (size_t s = Random() % list.size(); s < list.size(); ++s) list[s] += change;
        break;
      case 4:
        change = Uniform(-0.1, 0.6) * p_->costs[0].F;
        for (size_t k = knot; k < std::min<size_t>(knot + knots, DueTimes::kKnots); ++k)
          due.linger[k] = std::max(0.0, change);
        break;
      case 6:
        due.lead = Random() % 3 ? Uniform(-2, 8) * period_ : DueTimes().lead;
        break;
      case 5:
        due.first = std::min(1.0, Uniform(0.3, 1.3));
        break;
      default:
        change = Uniform(-0.1, 1.2);
        for (size_t k = knot; k < std::min<size_t>(knot + knots, DueTimes::kKnots); ++k)
          due.gap_share[k] = std::max(0.0, change);
    }
  }
  return due;
}

// A span that is worse by up to kSlack of a period is accepted, to leave a local optimum. After
// kStepsFromBest orders without a new best, the search goes back to the best.
constexpr double kSlack = 0.05;
constexpr int kStepsFromBest = 3000;

const TimedOrder& DueSearch::Next() {
  bool start = started_ < starts_;
  DueTimes due = start ? Start(started_++) : Changed(current_);
  double slack = kSlack * period_ * Uniform(0, 1) * Uniform(0, 1);
  double limit = start || !best_times_.ok ? kNever : (current_times_.span + slack) * (1 + 1e-9);
  last_ = PlayDue(*p_, due, start_up_, limit);
  played_ = 0;
  for (const auto& list : last_.order) played_ += static_cast<long>(list.size());
  const OrderTimes& times = last_.times;
  if (!start && ++since_ % kStepsFromBest == 0) current_ = best_, current_times_ = best_times_;
  if (!times.ok) return last_;
  bool better = !best_times_.ok || times.Better(best_times_);
  if (better || (!start && times.span <= current_times_.span + slack))
    current_ = std::move(due), current_times_ = times;
  if (better) {
    best_ = current_, best_times_ = times;
    since_ = 0;
  }
  return last_;
}

}  // namespace pipewright
