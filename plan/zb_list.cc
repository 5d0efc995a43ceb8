#include "plan/zb_list.h"

#include <algorithm>
#include <cmath>

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

// How many times the stages go over the ranks, and in which of them a stage is.
int Passes(const OrderProblem& p) { return std::max(1, p.stages / p.ranks); }
int PassOf(const OrderProblem& p, int stage) {
  return static_cast<int>(static_cast<long>(stage) * Passes(p) / p.stages);
}

class Player {
 public:
  Player(const OrderProblem& p, const DueTimes& due, const Order& start_up, double goal,
         double limit)
      : p_(p),
        due_(due),
        start_up_(start_up),
        goal_(goal),
        limit_(limit < 1e150 ? limit * limit * p.ranks : kUnknown),
        period_(Period(p)),
        ramp_(std::min<double>(p.microbatches, 1.25 * p.ranks)),
        ranks_(p.ranks),
        wakes_(p.ranks, 0),
        next_f_(p.stages),
        next_i_(p.stages) {
    size_t size = static_cast<size_t>(p.stages) * p.microbatches;
    forward_.assign(size, kUnknown), backward_.assign(size, kUnknown);
    stages_.resize(p.stages);
    for (int s = 0; s < p.stages; ++s) {
      int r = p.placement[s][0];
      size_t at = p.At(s, r);
      stages_[s] = {p.F[at],   p.I[at], p.W[at], p.stored[at], p.whole[at] - p.stored[at],
                    p.kept[at]};
    }
    Dues();
    std::fill(forward_.begin(), forward_.begin() + p.microbatches, 0);
    result_.order.resize(p.ranks);
    for (int r = 0; r < p.ranks; ++r) {
      size_t own = p.held[r].size() * static_cast<size_t>(p.microbatches);
      result_.order[r].reserve(3 * own);
      ranks_[r].pending.reserve(own);
      ranks_[r].left = ranks_[r].all = 2 * own;
      for (int s : p.held[r]) {
        size_t at = p.At(s, r);
        ranks_[r].work += p.microbatches * (p.F[at] + (p.forward_only ? 0 : p.I[at] + p.W[at]));
      }
      ranks_[r].start_up = static_cast<size_t>(due.first * static_cast<double>(start_up[r].size()));
      excess_ += Square(ranks_[r]);
    }
  }

  DueResult Run() {
    while (excess_ <= limit_) {
      auto next = std::min_element(wakes_.begin(), wakes_.end());
      if (*next >= kUnknown) break;
      now_ = *next;
      Turn(static_cast<int>(next - wakes_.begin()), now_);
    }
    result_.spans.assign(p_.ranks, 0);
    for (const Rank& rank : ranks_)
      if (rank.left || rank.done < rank.pending.size()) return std::move(result_);
    result_.times.ok = true;
    for (int r = 0; r < p_.ranks; ++r) {
      const Rank& rank = ranks_[r];
      if (rank.first < 0) continue;
      double span = result_.spans[r] = rank.last - rank.first;
      result_.times.span = std::max(result_.times.span, span);
      result_.times.total += span;
      result_.times.makespan = std::max(result_.times.makespan, rank.last);
    }
    return std::move(result_);
  }

 private:
  struct Rank {
    double bytes = 0, free = 0, first = -1, last = 0, idle = 0, work = 0;
    std::vector<Op> pending;  // W to be done, from `done` on
    size_t done = 0, left = 0, all = 0, start_up = 0, position = 0;
  };
  const OrderProblem& p_;
  const DueTimes& due_;
  const Order& start_up_;
  double goal_, limit_, period_, ramp_, now_ = 0;
  double excess_ = 0;  // sum of the squares by which the ranks will exceed the goal at least
  std::vector<Rank> ranks_;
  std::vector<double> wakes_;         // when each rank has its next turn
  std::vector<int> next_f_, next_i_;  // [stage]
  std::vector<double> forward_, backward_;
  DueResult result_;

  double Square(const Rank& rank) const {
    double over = std::max(0.0, rank.work + rank.idle - goal_);
    return over * over;
  }

  struct Stage {
    double F, I, W, stored, more, kept;  // `more`: beyond what is stored, while I runs
  };
  std::vector<Stage> stages_;
  std::vector<double> due_f_, due_i_;  // [stage * microbatches + microbatch]

  void Dues() {
    size_t size = forward_.size();
    due_f_.resize(size), due_i_.resize(size);
    std::vector<double> in(p_.microbatches), out(p_.microbatches);
    for (int m = 0; m < p_.microbatches; ++m) {
      in[m] = std::max(0.0, 1 - m / ramp_);
      out[m] = std::max(0.0, 1 - (p_.microbatches - 1 - m) / ramp_);
    }
    size_t at = 0;
    for (int s = 0; s < p_.stages; ++s)
      for (int m = 0; m < p_.microbatches; ++m, ++at) {
        double passed = m * period_;
        size_t own = static_cast<size_t>(PassOf(p_, s)) * p_.microbatches + m;
        due_f_[at] = due_.forward[s] + passed + in[m] * due_.forward_in[s] +
                     out[m] * due_.forward_out[s] + due_.forward_own[own];
        due_i_[at] = due_.backward[s] + passed + in[m] * due_.backward_in[s] +
                     out[m] * due_.backward_out[s] + due_.backward_own[own];
      }
  }

  size_t At(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * p_.microbatches + microbatch;
  }

  double At(const std::array<double, DueTimes::kKnots>& knots, double late) const {
    double x = late * (DueTimes::kKnots - 1);
    int k = std::min(static_cast<int>(x), DueTimes::kKnots - 2);
    return knots[k] + (x - k) * (knots[k + 1] - knots[k]);
  }
  // Room for one microbatch in each stage that holds none, and for what an I needs.
  double Reserve(int r) const {
    double reserve = 0, most = 0;
    for (int s : p_.held[r]) {
      most = std::max(most, stages_[s].more);
      if (next_f_[s] == next_i_[s] && next_f_[s] < p_.microbatches) reserve += stages_[s].stored;
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
    double reserve = starting ? 0 : Reserve(r);
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
      const Stage& cost = stages_[s];
      int m = next_i_[s];
      if (m < next_f_[s] && !p_.forward_only && rank.bytes + cost.more <= room) {
        size_t at = At(s, m);
        consider(OpKind::kI, s, m, backward_[at], due_i_[at]);
      }
      m = next_f_[s];
      if (m == p_.microbatches) continue;
      size_t at = At(s, m);
      double ready = forward_[at];
      if (ready == kUnknown) continue;
      double due = due_f_[at];
      // Its own place is not kept besides.
      double kept_free = reserve - (m == next_i_[s] ? cost.stored : 0);
      if (rank.bytes + cost.stored + kept_free > room) {
        blocked |= ready <= now && due - due_.lead <= now && due < least;
        continue;
      }
      consider(OpKind::kF, s, m, std::max(ready, due - due_.lead), due);
    }
    bool pending = rank.done < rank.pending.size();
    if (least == kUnknown || start > now) {
      double next = least == kUnknown ? soon : start;
      const Op* w = pending ? &rank.pending[rank.done] : nullptr;
      double patience = At(due_.patience, late);
      if (w && (blocked || next - now >= patience * stages_[w->stage].W)) {
        best = *w, ++rank.done;
      } else {
        wakes_[r] = next;
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
    if (wakes_[to] > rank.free) wakes_[to] = std::min(wakes_[to], turn);
  }

  void Do(const Op& op, int r, double now) {
    Rank& rank = ranks_[r];
    const Stage& cost = stages_[op.stage];
    size_t at = At(op.stage, op.microbatch);
    double end = now + (op.kind == OpKind::kF ? cost.F : op.kind == OpKind::kI ? cost.I : cost.W);
    if (rank.first < 0) {
      rank.first = now;
    } else if (now > rank.last) {
      excess_ -= Square(rank);
      rank.idle += now - rank.last;
      excess_ += Square(rank);
    }
    rank.last = rank.free = wakes_[r] = end;
    result_.order[r].push_back(op);
    if (op.kind == OpKind::kW) {
      rank.bytes -= cost.kept;
      return;
    }
    --rank.left;
    if (op.kind == OpKind::kF) {
      ++next_f_[op.stage];
      if (p_.forward_only)
        --rank.left;
      else
        rank.bytes += cost.stored;
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
    rank.bytes += cost.kept - cost.stored;
    rank.pending.push_back({OpKind::kW, op.stage, op.microbatch});
    if (op.stage > 0) {
      int to = p_.placement[op.stage - 1][0];
      double latency = to == r ? 0 : p_.down[op.stage - 1];
      Arrive(backward_, at - p_.microbatches, end + latency, r, to);
    }
  }
};

}  // namespace

double Excess(const std::vector<double>& spans, double goal) {
  double sum = 0;
  for (double span : spans) sum += std::pow(std::max(0.0, span - goal), 2);
  return std::sqrt(sum / static_cast<double>(spans.size()));
}

DueResult PlayDue(const OrderProblem& problem, const DueTimes& due, const Order& start_up,
                  double goal, double limit) {
  return Player(problem, due, start_up, goal, limit).Run();
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
  size_t own = static_cast<size_t>(Passes(*p_)) * p_->microbatches;
  due.forward_own.assign(own, 0), due.backward_own.assign(own, 0);
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
  int passes = Passes(*p_);
  for (unsigned left = 1 + Random() % 2; left > 0; --left) {
    std::vector<double>* lists[] = {&due.forward,     &due.backward,    &due.forward,
                                    &due.backward,    &due.forward_in,  &due.backward_in,
                                    &due.forward_out, &due.backward_out};
    std::vector<double>& list = *lists[Random() % 8];
    size_t knot = Random() % DueTimes::kKnots, knots = 1 + Random() % 3;
    double change = Uniform(-much, much);
    int pass = static_cast<int>(Random() % static_cast<unsigned>(passes));
    int first = p_->stages * pass / passes, last = p_->stages * (pass + 1) / passes;
    unsigned what = Random() % (bound_ < 0 ? 8 : 11);
    if (what > 7) {
      ChangeOne(due, pass, passes, change);
      continue;
    }
    switch (what) {
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

// One pass of one microbatch, or what follows it, mostly among the last ones.
void DueSearch::ChangeOne(DueTimes& due, int pass, int passes, double change) {
  int all = p_->microbatches, ramp = std::min(all, p_->ranks + p_->ranks / 4 + 1);
  unsigned where = Random() % 4;
  int m = static_cast<int>(Random() % static_cast<unsigned>(where == 0 ? all : ramp));
  if (where > 1) m = all - 1 - m;
  bool later = Random() % 4 == 0;
  std::vector<double>& own = Random() % 2 ? due.forward_own : due.backward_own;
  int last = Random() % 4 ? pass : passes - 1;
  for (; pass <= last; ++pass)
    for (int n = m; n < (later ? all : m + 1); ++n)
      own[static_cast<size_t>(pass) * all + n] += change;
}

// A little worse, up to this share of a period, is a way out; back to the best after so many.
constexpr double kSlack = 0.05;
constexpr int kPatience = 3000;

const DueResult& DueSearch::Next() {
  bool start = started_ < starts_;
  DueTimes due = start ? Start(started_++) : Changed(current_);
  double slack = kSlack * period_ * Uniform(0, 1) * Uniform(0, 1);
  bool whole = bound_ >= 0;  // judged by all ranks
  if (start || !best_times_.ok)
    last_ = PlayDue(*p_, due, start_up_);
  else if (whole)
    last_ = PlayDue(*p_, due, start_up_, goal_, (current_excess_ + slack) * (1 + 1e-9));
  else
    last_ = PlayDue(*p_, due, start_up_, (current_times_.span + slack) * (1 + 1e-9), 0);
  played_ = 0;
  for (const auto& list : last_.order) played_ += static_cast<long>(list.size());
  const OrderTimes& times = last_.times;
  if (!start && ++since_ % kPatience == 0) {
    current_ = best_, current_times_ = best_times_;
    current_spans_ = best_spans_, current_excess_ = best_excess_;
  }
  if (!times.ok) return last_;
  if (times.span < least_span_) SetGoal(times.span);
  double excess = Excess(last_.spans, goal_);
  bool better = whole ? excess < best_excess_ * (1 - 1e-9) : times.Better(best_times_);
  bool near = whole ? excess <= current_excess_ + slack : times.span <= current_times_.span + slack;
  if (!best_times_.ok || better || (!start && near)) {
    current_ = std::move(due), current_times_ = times;
    current_spans_ = last_.spans, current_excess_ = excess;
  }
  if (!best_times_.ok || better) {
    best_ = current_, best_times_ = times;
    best_spans_ = last_.spans, best_excess_ = excess;
    since_ = 0;
  }
  return last_;
}

// Ranks far below the worst one do not count.
void DueSearch::SetGoal(double least_span) {
  double longest = 0;
  for (int s = 0; s < p_->stages; ++s) {
    size_t at = p_->At(s, p_->placement[s][0]);
    longest = std::max(longest, p_->F[at] + p_->I[at] + p_->W[at]);
  }
  least_span_ = least_span;
  goal_ = std::max(bound_, least_span - longest);
  if (!best_times_.ok) return;
  best_excess_ = Excess(best_spans_, goal_);
  current_excess_ = Excess(current_spans_, goal_);
}

}  // namespace pipewright
