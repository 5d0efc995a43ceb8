#include "plan/zb_list.h"

#include <algorithm>
#include <cmath>
#include <queue>

#include "plan/zb_scripts.h"

namespace pipewright {

namespace {

constexpr double kUnknown = 1e300;

double Period(const OrderProblem& p) {
  double period = 0;
  for (int r = 0; r < p.ranks; ++r) {
    double work = 0;
    for (int s : p.held[r]) work += p.F[p.At(s, r)] + p.I[p.At(s, r)] + p.W[p.At(s, r)];
    period = std::max(period, work);
  }
  return period;
}

class Player {
 public:
  Player(const OrderProblem& p, const DueTimes& due, const Order& start_up)
      : p_(p),
        due_(due),
        start_up_(start_up),
        period_(Period(p)),
        ranks_(p.ranks),
        next_f_(p.stages),
        next_i_(p.stages) {
    size_t size = static_cast<size_t>(p.stages) * p.microbatches;
    forward_.assign(size, kUnknown), backward_.assign(size, kUnknown);
    std::fill(forward_.begin(), forward_.begin() + p.microbatches, 0);
    result_.order.resize(p.ranks);
    for (int r = 0; r < p.ranks; ++r) {
      turns_.push({0, r});
      size_t own = p.held[r].size() * static_cast<size_t>(p.microbatches);
      result_.order[r].reserve(3 * own);
      ranks_[r].pending.reserve(own);
      ranks_[r].left = ranks_[r].all = 2 * own;
      ranks_[r].start_up = static_cast<size_t>(due.first * static_cast<double>(start_up[r].size()));
    }
  }

  PlayResult Run() {
    while (!turns_.empty()) {
      auto [now, r] = turns_.top();
      turns_.pop();
      now_ = now;
      if (ranks_[r].wake == now) Turn(r, now);
    }
    result_.times.ok = true;
    for (const Rank& rank : ranks_) {
      if (rank.left || rank.done < rank.pending.size()) return {};
      if (rank.first < 0) continue;
      result_.times.span = std::max(result_.times.span, rank.last - rank.first);
      result_.times.total += rank.last - rank.first;
      result_.times.makespan = std::max(result_.times.makespan, rank.last);
    }
    return std::move(result_);
  }

 private:
  struct Rank {
    double bytes = 0, free = 0, wake = 0, first = -1, last = 0;
    std::vector<Op> pending;  // W to be done, from `done` on
    size_t done = 0, left = 0, all = 0, start_up = 0, position = 0;
  };
  const OrderProblem& p_;
  const DueTimes& due_;
  const Order& start_up_;
  double period_, now_ = 0;
  std::vector<Rank> ranks_;
  std::vector<int> next_f_, next_i_;  // [stage]
  std::vector<double> forward_, backward_;
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>>
      turns_;
  PlayResult result_;

  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * p_.microbatches + microbatch;
  }

  // Room for one microbatch in each other stage that holds none, and for what an I needs.
  double Reserve(int r, int stage) const {
    double reserve = 0, most = 0;
    for (int s : p_.held[r]) {
      size_t at = p_.At(s, r);
      most = std::max(most, p_.whole[at] - p_.stored[at]);
      if (s != stage && next_f_[s] == next_i_[s] && next_f_[s] < p_.microbatches)
        reserve += p_.stored[at];
    }
    return reserve + most;
  }

  void Turn(int r, double now) {
    Rank& rank = ranks_[r];
    double room = p_.room[r] * (1 + 1e-12) + 1e-9, soon = kUnknown, least = kUnknown;
    double horizon = now + due_.linger, start = kUnknown;
    Op best;
    bool blocked = false;
    auto consider = [&](OpKind kind, int s, int m, double ready, double due) {
      if (ready > horizon) {
        soon = std::min(soon, ready);
      } else if (due < least) {
        best = {kind, s, m}, least = due, start = ready;
      }
    };
    bool starting = rank.position < rank.start_up;
    if (starting) {
      const Op& op = start_up_[r][rank.position];
      double ready = forward_[At(op.stage, op.microbatch)];
      if (ready <= now) {
        ++rank.position;
        Do(op, r, now);
        return;
      }
      soon = ready;
    }
    for (int s : p_.held[r]) {
      if (starting) break;
      size_t cost = p_.At(s, r);
      int m = next_i_[s];
      if (m < next_f_[s] && !p_.forward_only &&
          rank.bytes + p_.whole[cost] - p_.stored[cost] <= room)
        consider(OpKind::kI, s, m, backward_[At(s, m)], due_.backward[s] + m * period_);
      m = next_f_[s];
      if (m == p_.microbatches) continue;
      double ready = forward_[At(s, m)];
      if (ready == kUnknown) continue;
      if (rank.bytes + p_.stored[cost] + Reserve(r, s) > room) {
        blocked |= ready <= now && due_.forward[s] + m * period_ - due_.lead <= now &&
                   due_.forward[s] + m * period_ < least;
        continue;
      }
      double due = due_.forward[s] + m * period_;
      consider(OpKind::kF, s, m, std::max(ready, due - due_.lead), due);
    }
    bool pending = rank.done < rank.pending.size();
    if (least == kUnknown || start > now) {
      double next = least == kUnknown ? soon : start;
      const Op* w = pending ? &rank.pending[rank.done] : nullptr;
      double late = 1 - static_cast<double>(rank.left) / static_cast<double>(rank.all);
      double patience = due_.patience + late * (due_.late - due_.patience);
      if (w && (blocked || next - now >= patience * p_.W[p_.At(w->stage, r)])) {
        best = *w, ++rank.done;
      } else {
        rank.wake = next < kUnknown ? next : -1;
        if (rank.wake >= 0) turns_.push({next, r});
        return;
      }
    }
    Do(best, r, now);
  }

  void Arrive(std::vector<double>& table, size_t at, double time, int from, int to) {
    table[at] = time;
    Rank& rank = ranks_[to];
    if (to == from) return;
    // What is due first may change the mind of a rank that waits.
    double turn = std::max(time - due_.linger, rank.free);
    turn = std::max(turn, now_);
    if (rank.wake < 0 || (rank.wake > rank.free && turn < rank.wake))
      turns_.push({rank.wake = turn, to});
  }

  void Do(const Op& op, int r, double now) {
    Rank& rank = ranks_[r];
    size_t cost = p_.At(op.stage, r), at = At(op.stage, op.microbatch);
    double end = now + (op.kind == OpKind::kF   ? p_.F[cost]
                        : op.kind == OpKind::kI ? p_.I[cost]
                                                : p_.W[cost]);
    if (rank.first < 0) rank.first = now;
    rank.last = rank.free = rank.wake = end;
    turns_.push({end, r});
    result_.order[r].push_back(op);
    if (op.kind == OpKind::kW) {
      rank.bytes -= p_.kept[cost];
      return;
    }
    --rank.left;
    if (op.kind == OpKind::kF) {
      ++next_f_[op.stage];
      if (p_.forward_only)
        --rank.left;
      else
        rank.bytes += p_.stored[cost];
      if (op.stage + 1 < p_.stages) {
        int to = p_.placement[op.stage + 1][0];
        double latency = to == r ? 0 : p_.up[op.stage];
        Arrive(forward_, at + p_.microbatches, end + latency, r, to);
      } else {
        backward_[at] = end;
      }
      return;
    }
    ++next_i_[op.stage];
    rank.bytes += p_.kept[cost] - p_.stored[cost];
    rank.pending.push_back({OpKind::kW, op.stage, op.microbatch});
    if (op.stage > 0) {
      int to = p_.placement[op.stage - 1][0];
      double latency = to == r ? 0 : p_.down[op.stage - 1];
      Arrive(backward_, at - p_.microbatches, end + latency, r, to);
    }
  }
};

}  // namespace

PlayResult PlayDue(const OrderProblem& problem, const DueTimes& due, const Order& start_up) {
  return Player(problem, due, start_up).Run();
}

DueSearch::DueSearch(const OrderProblem& problem, size_t starts, unsigned seed)
    : p_(problem),
      starts_(std::clamp<size_t>(starts, 1, kStarts)),
      start_up_(StartUp(problem)),
      period_(Period(problem)),
      random_(seed * 2654435761u + 1) {
  current_ = Start(0);
}

unsigned DueSearch::Random() {
  random_ ^= random_ << 13, random_ ^= random_ >> 17, random_ ^= random_ << 5;
  return random_;
}

double DueSearch::Uniform(double low, double high) {
  return low + (high - low) * (Random() % 65536) / 65536;
}

// Along a microbatch's path, at the speed at which it can go or faster; I later than it can be.
DueTimes DueSearch::Start(size_t n) const {
  constexpr double kSpeed[] = {1, 0.5, 0.1, 0};  // the best first, by trial
  constexpr double kLinger[] = {0.1, 0};
  constexpr double kLater[] = {3, 1, 0};
  DueTimes due;
  due.patience = due.late = 0.7;
  double up = kSpeed[n % 4], down = kSpeed[n / 4 % 4], later = kLater[n / 32 % 3];
  due.linger = kLinger[n / 16 % 2] * p_.F[p_.At(0, p_.placement[0][0])];
  double time = 0;
  for (int s = 0; s < p_.stages; ++s) {
    due.forward.push_back(time * up - 1e-6 * period_ * s);
    time += p_.F[p_.At(s, p_.placement[s][0])] + (s + 1 < p_.stages ? p_.up[s] : 0);
  }
  double turn = time, back = 0;
  due.backward.resize(p_.stages);
  for (int s = p_.stages; s-- > 0;) {
    double rank = 1e-6 * period_ * (2 * p_.stages - s);  // equal otherwise: the later stage first
    due.backward[s] = turn * up + later * period_ + back * down - rank;
    back += p_.I[p_.At(s, p_.placement[s][0])] + (s > 0 ? p_.down[s - 1] : 0);
  }
  return due;
}

DueTimes DueSearch::Changed(DueTimes due) {
  double much = period_ * std::pow(2.0, -static_cast<double>(Random() % 8)) * 2;
  int passes = std::max(1, p_.stages / p_.ranks);
  for (unsigned left = 1 + Random() % 2; left > 0; --left) {
    std::vector<double>& list = Random() % 2 ? due.forward : due.backward;
    double change = Uniform(-much, much);
    int pass = static_cast<int>(Random() % static_cast<unsigned>(passes));
    int first = p_.stages * pass / passes, last = p_.stages * (pass + 1) / passes;
    switch (Random() % 8) {
      case 0:  // a pass over the ranks
        for (int s = first; s < last; ++s) list[s] += change;
        break;
      case 1:  // its slope
        for (int s = first; s < last; ++s) list[s] += change * (s - first) / (last - first);
        break;
      case 2:  // one stage
        list[Random() % list.size()] += change;
        break;
      case 3:  // one stage's and all behind
        for (size_t s = Random() % list.size(); s < list.size(); ++s) list[s] += change;
        break;
      case 4:
        due.linger = Uniform(0, 0.6) * p_.F[p_.At(0, p_.placement[0][0])];
        break;
      case 6:
        due.lead = Random() % 3 ? Uniform(-2, 8) * period_ : kUnknown;
        break;
      case 5:
        due.first = std::min(1.0, Uniform(0.3, 1.3));
        break;
      default:
        (Random() % 2 ? due.patience : due.late) = Uniform(0, 1.2);
    }
  }
  return due;
}

const PlayResult& DueSearch::Next() {
  bool start = started_ < starts_;
  DueTimes due = start ? Start(started_++) : Changed(current_);
  last_ = PlayDue(p_, due, start_up_);
  const OrderTimes& times = last_.times;
  if (!times.ok) return last_;
  if (!best_times_.ok || times.Better(best_times_)) {
    best_times_ = current_times_ = times;
    best_ = current_ = std::move(due);
    since_ = 0;
    return last_;
  }
  if (start) return last_;
  // A little worse is a way out; now and then back to the best.
  double slack = 0.02 * period_ * Uniform(0, 1) * Uniform(0, 1);
  if (times.span <= current_times_.span + slack) current_ = std::move(due), current_times_ = times;
  if (++since_ % 400 == 0) current_ = best_, current_times_ = best_times_;
  return last_;
}

}  // namespace pipewright
