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
  Player(const OrderProblem& p, const DueTimes& due, const Order& start_up, double limit)
      : p_(p),
        due_(due),
        start_up_(start_up),
        limit_(limit),
        period_(Period(p)),
        ramp_(std::min<double>(p.microbatches, 1.25 * p.ranks)),
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
      for (int s : p.held[r]) {
        size_t at = p.At(s, r);
        ranks_[r].work += p.microbatches * (p.F[at] + (p.forward_only ? 0 : p.I[at] + p.W[at]));
      }
      ranks_[r].start_up = static_cast<size_t>(due.first * static_cast<double>(start_up[r].size()));
    }
  }

  PlayResult Run() {
    while (!turns_.empty() && !late_) {
      auto [now, r] = turns_.top();
      turns_.pop();
      now_ = now;
      if (ranks_[r].wake == now) Turn(r, now);
    }
    for (const Rank& rank : ranks_)
      if (rank.left || rank.done < rank.pending.size()) return std::move(result_);
    result_.times.ok = true;
    for (const Rank& rank : ranks_) {
      if (rank.first < 0) continue;
      result_.times.span = std::max(result_.times.span, rank.last - rank.first);
      result_.times.total += rank.last - rank.first;
      result_.times.makespan = std::max(result_.times.makespan, rank.last);
    }
    return std::move(result_);
  }

 private:
  struct Rank {
    double bytes = 0, free = 0, wake = 0, first = -1, last = 0, idle = 0, work = 0;
    std::vector<Op> pending;  // W to be done, from `done` on
    size_t done = 0, left = 0, all = 0, start_up = 0, position = 0;
  };
  const OrderProblem& p_;
  const DueTimes& due_;
  const Order& start_up_;
  double limit_, period_, ramp_, now_ = 0;
  bool late_ = false;
  std::vector<Rank> ranks_;
  std::vector<int> next_f_, next_i_;  // [stage]
  std::vector<double> forward_, backward_;
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>>
      turns_;
  PlayResult result_;

  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * p_.microbatches + microbatch;
  }

  double At(const std::array<double, DueTimes::kKnots>& knots, double late) const {
    double x = late * (DueTimes::kKnots - 1);
    int k = std::min(static_cast<int>(x), DueTimes::kKnots - 2);
    return knots[k] + (x - k) * (knots[k + 1] - knots[k]);
  }
  double In(int m) const { return std::max(0.0, 1 - m / ramp_); }
  double Out(int m) const { return std::max(0.0, 1 - (p_.microbatches - 1 - m) / ramp_); }
  double DueF(int s, int m) const {
    return due_.forward[s] + m * period_ + In(m) * due_.forward_in[s] +
           Out(m) * due_.forward_out[s];
  }
  double DueI(int s, int m) const {
    return due_.backward[s] + m * period_ + In(m) * due_.backward_in[s] +
           Out(m) * due_.backward_out[s];
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
    double late = 1 - static_cast<double>(rank.left) / static_cast<double>(rank.all);
    double horizon = now + At(due_.linger, late), start = kUnknown;
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
        consider(OpKind::kI, s, m, backward_[At(s, m)], DueI(s, m));
      m = next_f_[s];
      if (m == p_.microbatches) continue;
      double ready = forward_[At(s, m)];
      if (ready == kUnknown) continue;
      if (rank.bytes + p_.stored[cost] + Reserve(r, s) > room) {
        blocked |= ready <= now && DueF(s, m) - due_.lead <= now && DueF(s, m) < least;
        continue;
      }
      double due = DueF(s, m);
      consider(OpKind::kF, s, m, std::max(ready, due - due_.lead), due);
    }
    bool pending = rank.done < rank.pending.size();
    if (least == kUnknown || start > now) {
      double next = least == kUnknown ? soon : start;
      const Op* w = pending ? &rank.pending[rank.done] : nullptr;
      double patience = At(due_.patience, late);
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
    double late = 1 - static_cast<double>(rank.left) / static_cast<double>(rank.all);
    double turn = std::max(time - At(due_.linger, late), rank.free);
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
    if (rank.first < 0)
      rank.first = now;
    else
      rank.idle += now - rank.last;
    if (rank.work + rank.idle > limit_) late_ = true;
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

PlayResult PlayDue(const OrderProblem& problem, const DueTimes& due, const Order& start_up,
                   double limit) {
  return Player(problem, due, start_up, limit).Run();
}

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

// Along a microbatch's path, at the speed at which it can go or faster; I later than it can be.
DueTimes DueSearch::Start(size_t n) const {
  constexpr double kSpeed[] = {1, 0.5, 0.1, 0};  // the best first, by trial
  constexpr double kLinger[] = {0.1, 0};
  constexpr double kLater[] = {3, 1, 0};
  DueTimes due;
  // In the middle there is always something else to do.
  due.patience.fill(0), due.linger.fill(0);
  due.patience.front() = due.patience.back() = 0.7;
  for (auto* list : {&due.forward_in, &due.backward_in, &due.forward_out, &due.backward_out})
    list->assign(p_->stages, 0);
  double up = kSpeed[n % 4], down = kSpeed[n / 4 % 4], later = kLater[n / 32 % 3];
  due.linger.front() = due.linger.back() =
      kLinger[n / 16 % 2] * p_->F[p_->At(0, p_->placement[0][0])];
  double time = 0;
  for (int s = 0; s < p_->stages; ++s) {
    due.forward.push_back(time * up - 1e-6 * period_ * s);
    time += p_->F[p_->At(s, p_->placement[s][0])] + (s + 1 < p_->stages ? p_->up[s] : 0);
  }
  double turn = time, back = 0;
  due.backward.resize(p_->stages);
  for (int s = p_->stages; s-- > 0;) {
    double rank = 1e-6 * period_ * (2 * p_->stages - s);  // equal otherwise: the later stage first
    due.backward[s] = turn * up + later * period_ + back * down - rank;
    back += p_->I[p_->At(s, p_->placement[s][0])] + (s > 0 ? p_->down[s - 1] : 0);
  }
  return due;
}

DueTimes DueSearch::Changed(DueTimes due) {
  double much = period_ * std::pow(2.0, -static_cast<double>(Random() % 8)) * 2;
  int passes = std::max(1, p_->stages / p_->ranks);
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
        change = Uniform(-0.1, 0.6) * p_->F[p_->At(0, p_->placement[0][0])];
        for (size_t k = knot; k < std::min<size_t>(knot + knots, DueTimes::kKnots); ++k)
          due.linger[k] = std::max(0.0, change);
        break;
      case 6:
        due.lead = Random() % 3 ? Uniform(-2, 8) * period_ : kUnknown;
        break;
      case 5:
        due.first = std::min(1.0, Uniform(0.3, 1.3));
        break;
      default:
        change = Uniform(-0.1, 1.2);
        for (size_t k = knot; k < std::min<size_t>(knot + knots, DueTimes::kKnots); ++k)
          due.patience[k] = std::max(0.0, change);
    }
  }
  return due;
}

// A little worse, up to this share of a period, is a way out; back to the best after so many.
constexpr double kSlack = 0.05;
constexpr int kPatience = 3000;

const PlayResult& DueSearch::Next() {
  bool start = started_ < starts_;
  DueTimes due = start ? Start(started_++) : Changed(current_);
  double slack = kSlack * period_ * Uniform(0, 1) * Uniform(0, 1);
  double limit = start || !best_times_.ok ? kUnknown : (current_times_.span + slack) * (1 + 1e-9);
  last_ = PlayDue(*p_, due, start_up_, limit);
  played_ = 0;
  for (const auto& list : last_.order) played_ += static_cast<long>(list.size());
  const OrderTimes& times = last_.times;
  if (!start && ++since_ % kPatience == 0) current_ = best_, current_times_ = best_times_;
  if (!times.ok) return last_;
  if (!best_times_.ok || times.Better(best_times_)) {
    best_times_ = current_times_ = times;
    best_ = current_ = std::move(due);
    since_ = 0;
    return last_;
  }
  if (start) return last_;
  if (times.span <= current_times_.span + slack) current_ = std::move(due), current_times_ = times;
  return last_;
}

}  // namespace pipewright
