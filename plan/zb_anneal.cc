#include "plan/zb_anneal.h"

#include <algorithm>
#include <cmath>

#include "plan/zb_paths.h"

namespace pipewright {

namespace {

// All in units of an average action's time.
constexpr double kHot = 0.009, kCold = 0.0009;  // temperatures
constexpr double kBelow = 0.1;                  // so far below the best span lies the goal
constexpr double kIdle = 0.02;                  // what idle time of any rank counts besides

struct Move {
  int rank = 0, from = 0, to = 0;
};

class Annealer {
 public:
  Annealer(const OrderProblem& p, const Order& order, unsigned seed)
      : p_(p), paths_(p, order), random_(88172645463325252u + seed * 1000003u) {
    lists_ = paths_.lists();
    size_t ids = 3 * static_cast<size_t>(p.stages) * p.microbatches;
    head_.assign(ids, 0), next_head_.assign(ids, 0);
    fresh_.assign(ids, 0), waiter_.assign(ids, -1);
    from_.assign(p.ranks, 0), at_.assign(p.ranks, 0), next_waiter_.assign(p.ranks, -1);
    now_.assign(p.ranks, 0), first_.assign(p.ranks, 0), spans_.assign(p.ranks, 0);
    double sum = 0;
    for (const auto& list : lists_) {
      for (int id : list) sum += paths_.job(id).time;
      count_ += list.size();
    }
    action_ = count_ ? sum / static_cast<double>(count_) : 0;
  }

  OrderTimes Run(long effort, double enough, Order& order) {
    OrderTimes best;
    if (action_ <= 0 || !Time(-1)) return best;
    Accept();
    best = Times();
    auto lists = lists_;
    SetGoal(best.span, enough);
    double cost = Cost();
    const long all = effort;
    while (effort > 0 && best.span > enough * (1 + 1e-12)) {
      Move move;
      --effort;
      if (!Choose(move)) continue;
      double start = head_[lists_[move.rank][std::min(move.from, move.to)]];
      Rotate(move);
      if (!Allowed(move)) {
        Rotate({move.rank, move.to, move.from});
        continue;
      }
      bool runs = Time(start);
      effort -= timed_;
      double next = runs ? Cost() : 0;
      double left = static_cast<double>(std::max(0L, effort)) / static_cast<double>(all);
      double heat = action_ * kCold * std::pow(kHot / kCold, left);
      if (!runs || (next > cost && Uniform() >= std::exp((cost - next) / heat))) {
        Rotate({move.rank, move.to, move.from});
        continue;
      }
      Accept();
      cost = next;
      OrderTimes times = Times();
      if (!times.Better(best)) continue;
      bool less = times.span < best.span * (1 - 1e-9);
      best = times, lists = lists_;
      if (less) SetGoal(best.span, enough), cost = Cost();
    }
    order = paths_.ToOrder(lists);
    return best;
  }

 private:
  const OrderProblem& p_;
  OrderPaths paths_;                      // what the actions are
  std::vector<std::vector<int>> lists_;   // [rank] -> actions
  std::vector<double> head_, next_head_;  // [action] when it starts: as accepted, and on trial
  std::vector<long> fresh_;  // [action] 2 * trial_: to be timed in it; and 1: timed in it
  std::vector<int> waiter_, next_waiter_, from_, at_, ready_;
  std::vector<double> now_, first_, spans_;
  size_t count_ = 0;
  long trial_ = 0, timed_ = 0;
  double action_ = 0, goal_ = 0;
  uint64_t random_;

  unsigned Random() {
    random_ ^= random_ << 13, random_ ^= random_ >> 7, random_ ^= random_ << 17;
    return static_cast<unsigned>(random_ >> 11);
  }
  int Below(int n) { return static_cast<int>(Random() % static_cast<unsigned>(n)); }
  double Uniform() { return (Random() % 1048576) / 1048576.0; }

  void SetGoal(double span, double enough) {
    goal_ = span - enough < action_ ? enough : span - kBelow * action_;
  }

  double Cost() const {
    double cost = 0;
    for (double span : spans_) cost += std::max(0.0, span - goal_) + kIdle * (span - goal_);
    return cost;
  }

  OrderTimes Times() const {
    OrderTimes times;
    times.ok = true;
    for (int r = 0; r < p_.ranks; ++r) {
      times.span = std::max(times.span, spans_[r]);
      times.total += spans_[r];
      times.makespan = std::max(times.makespan, now_[r]);
    }
    return times;
  }

  // Only in the second half of a list, where the pipeline drains; W goes far, others a few places.
  // False: not this one.
  bool Choose(Move& move) {
    move.rank = Below(p_.ranks);
    const auto& list = lists_[move.rank];
    int size = static_cast<int>(list.size());
    if (size < 2) return false;
    move.from = size - 1 - Below((size + 1) / 2);
    const OrderPaths::Job& job = paths_.job(list[move.from]);
    int far = job.kind == OpKind::kW ? 1 + (Below(2) ? Below(4) : Below(25))
                                     : 1 + (Below(3) ? Below(3) : Below(10));
    move.to = Below(2) ? move.from + far : move.from - far;
    if (move.to < 0 || move.to >= size) return false;
    int step = move.to > move.from ? 1 : -1;
    for (int i = move.from + step; i != move.to + step; i += step) {
      const OrderPaths::Job& other = paths_.job(list[i]);
      if (other.stage != job.stage) continue;
      if (other.kind == job.kind) return false;  // microbatches stay in order
      bool weight = other.kind == OpKind::kW || job.kind == OpKind::kW;
      if (!weight && other.microbatch == job.microbatch) return false;
    }
    return true;
  }

  void Rotate(const Move& move) {
    auto begin = lists_[move.rank].begin();
    if (move.from < move.to)
      std::rotate(begin + move.from, begin + move.from + 1, begin + move.to + 1);
    else
      std::rotate(begin + move.to, begin + move.from, begin + move.from + 1);
  }

  // Memory, and no W before its I.
  bool Allowed(const Move& move) const {
    double room = p_.room[move.rank] * (1 + 1e-12) + 1e-9, bytes = 0;
    const OrderPaths::Job& moved = paths_.job(lists_[move.rank][move.to]);
    int pending = 0, end = std::max(move.from, move.to);
    for (int i = 0; i <= end; ++i) {
      const OrderPaths::Job& job = paths_.job(lists_[move.rank][i]);
      bytes += job.during;
      if (bytes > room) return false;
      bytes += job.after;
      if (job.stage != moved.stage) continue;
      pending += job.kind == OpKind::kI ? 1 : job.kind == OpKind::kW ? -1 : 0;
      if (pending < 0) return false;
    }
    return true;
  }

  // Times all that starts at `start` or later in what is accepted. False where it never ends.
  bool Time(double start) {
    ++trial_;
    timed_ = 0;
    ready_.clear();
    for (int r = p_.ranks; r-- > 0;) {
      const auto& list = lists_[r];
      auto found = list.begin();
      if (start >= 0)
        found = std::lower_bound(list.begin(), list.end(), start,
                                 [&](int id, double time) { return head_[id] < time; });
      from_[r] = at_[r] = static_cast<int>(found - list.begin());
      now_[r] = at_[r] ? End(list[at_[r] - 1]) : 0;
      for (auto id = found; id != list.end(); ++id) fresh_[*id] = 2 * trial_, waiter_[*id] = -1;
      timed_ += static_cast<long>(list.end() - found);
      ready_.push_back(r);
    }
    while (!ready_.empty()) {
      int r = ready_.back();
      ready_.pop_back();
      const auto& list = lists_[r];
      double now = now_[r];
      int i = at_[r];
      for (; i < static_cast<int>(list.size()); ++i) {
        int id = list[i];
        const OrderPaths::Job& job = paths_.job(id);
        if (job.before >= 0) {
          if (fresh_[job.before] == 2 * trial_) {
            next_waiter_[r] = waiter_[job.before];
            waiter_[job.before] = r;
            break;
          }
          double head =
              fresh_[job.before] > 2 * trial_ ? next_head_[job.before] : head_[job.before];
          now = std::max(now, head + paths_.job(job.before).time + job.lag_before);
        }
        next_head_[id] = now;
        now += job.time;
        fresh_[id] = 2 * trial_ + 1;
        for (int q = waiter_[id]; q >= 0; q = next_waiter_[q]) ready_.push_back(q);
      }
      at_[r] = i, now_[r] = now;
    }
    for (int r = 0; r < p_.ranks; ++r) {
      if (at_[r] < static_cast<int>(lists_[r].size())) return false;
      if (lists_[r].empty()) continue;
      first_[r] = from_[r] ? head_[lists_[r][0]] : next_head_[lists_[r][0]];
      spans_[r] = now_[r] - first_[r];
    }
    return true;
  }

  double End(int id) const { return head_[id] + paths_.job(id).time; }

  void Accept() {
    for (int r = 0; r < p_.ranks; ++r)
      for (size_t i = from_[r]; i < lists_[r].size(); ++i)
        head_[lists_[r][i]] = next_head_[lists_[r][i]];
  }
};

}  // namespace

OrderTimes Anneal(const OrderProblem& problem, Order& order, long effort, unsigned seed,
                  double enough) {
  return Annealer(problem, order, seed).Run(effort, enough, order);
}

}  // namespace pipewright
