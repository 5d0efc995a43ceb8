// Runs a chain of stages through simulated time: whenever a rank is free, a dispatch rule chooses
// what it starts. The result is an order with its times.
#pragma once
#include <algorithm>
#include <vector>

#include "plan/schedules/order_problem.h"

namespace pipewright {

constexpr double kNever = 1e300;

// Finds the rank whose turn is next with a tournament tree. The lower rank wins a tie.
class Turns {
 public:
  explicit Turns(int ranks) {
    while (size_ < static_cast<size_t>(ranks)) size_ *= 2;
    times_.assign(size_, kNever);
    winner_.resize(2 * size_);
    for (size_t r = 0; r < size_; ++r) winner_[size_ + r] = static_cast<int>(r);
    for (size_t n = size_; n-- > 1;) winner_[n] = winner_[2 * n];
    for (int r = 0; r < ranks; ++r) Set(r, 0);
  }
  int first() const { return winner_[1]; }
  double time(int rank) const { return times_[rank]; }
  void Set(int rank, double time) {
    times_[rank] = time;
    for (size_t n = (size_ + rank) / 2; n > 0; n /= 2) {
      int low = winner_[2 * n], high = winner_[2 * n + 1];
      winner_[n] = times_[high] < times_[low] ? high : low;
    }
  }

 private:
  size_t size_ = 1;
  std::vector<double> times_;
  std::vector<int> winner_;  // by match, as in a binary heap; [1]: the final's
};

// The state that a rule may read.
struct DispatchState {
  const OrderProblem& p;
  // The time when the input of F or I arrives; kNever if that is not known yet.
  std::vector<double> forward, backward;  // [p.At(stage, microbatch)]
  struct Rank {
    double bytes = 0;  // held now
    double free = 0, first = -1, last = 0;
    std::vector<Op> pending;  // W whose I is done; the first `done` of them have run
    size_t done = 0;
  };
  std::vector<Rank> ranks;
};

// The base of dispatch rules. A rule may replace these functions, and also has
//   double Choose(const DispatchState& state, int rank, double now, Op& op)
//     returns `now` and sets `op` to start it; or returns the latest time to ask again (kNever:
//     when something arrives); or returns a negative time to give up. It records what it started.
//   bool Complete() const
//     returns true if all F and I have been started
struct DispatchRule {
  // Returns how long before an arrival the rank is asked again.
  double Linger(int) const { return 0; }
  // Called with the time that the rank was idle between two of its actions.
  void Idle(int, double) {}
  // Returns true to give up.
  bool Enough() const { return false; }
};

// Runs the pipeline under `rule`. The result's `ok` is false if the rule gave up or anything is
// left to do.
template <typename Rule>
TimedOrder Dispatch(const OrderProblem& p, Rule& rule) {
  TimedOrder result;
  result.order.resize(p.ranks);
  size_t all = static_cast<size_t>(p.stages) * p.microbatches;
  DispatchState state{p, std::vector<double>(all, kNever), std::vector<double>(all, kNever), {}};
  std::fill(state.forward.begin(), state.forward.begin() + p.microbatches, 0);
  state.ranks.resize(p.ranks);
  for (int r = 0; r < p.ranks; ++r) {
    size_t own = p.held[r].size() * static_cast<size_t>(p.microbatches);
    result.order[r].reserve(p.forward_only ? own : 3 * own);
    if (!p.forward_only) state.ranks[r].pending.reserve(own);
  }
  Turns turns(p.ranks);
  double now = 0;
  auto arrive = [&](double& entry, double time, int from, int to) {
    entry = time;
    if (to == from) return;
    double free = state.ranks[to].free;
    if (turns.time(to) <= free) return;
    double turn = std::max(std::max(time - rule.Linger(to), free), now);
    if (turn < turns.time(to)) turns.Set(to, turn);
  };
  while (!rule.Enough()) {
    int r = turns.first();
    now = turns.time(r);
    if (now >= kNever) break;
    Op op;
    double next = rule.Choose(state, r, now, op);
    if (next < 0) return result;
    if (next > now) {
      turns.Set(r, next);
      continue;
    }
    DispatchState::Rank& rank = state.ranks[r];
    const OpCosts& costs = p.Of(op.stage, op.microbatch);
    MemoryChange memory = costs.Memory(op.kind, p.forward_only);
    double end = now + costs.Time(op.kind);
    if (rank.first < 0)
      rank.first = now;
    else if (now > rank.last)
      rule.Idle(r, now - rank.last);
    rank.last = rank.free = end;
    turns.Set(r, end);
    rank.bytes += memory.during + memory.after;
    result.order[r].push_back(op);
    size_t at = p.At(op.stage, op.microbatch);
    if (op.kind == OpKind::kW) {
      ++rank.done;
    } else if (op.kind == OpKind::kI) {
      rank.pending.push_back({OpKind::kW, op.stage, op.microbatch});
      if (op.stage > 0)
        arrive(state.backward[at - p.microbatches], end + p.Down(op.stage - 1, op.microbatch), r,
               p.RankOf(op.stage - 1, op.microbatch));
    } else if (op.stage + 1 < p.stages) {
      arrive(state.forward[at + p.microbatches], end + p.Up(op.stage, op.microbatch), r,
             p.RankOf(op.stage + 1, op.microbatch));
    } else {
      state.backward[at] = end;
    }
  }
  result.times.ok = rule.Complete();
  for (const auto& rank : state.ranks) {
    result.times.ok &= rank.done == rank.pending.size();
    if (rank.first >= 0) result.times.Add(rank.first, rank.last);
  }
  return result;
}

}  // namespace pipewright
