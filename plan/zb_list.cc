#include "plan/zb_list.h"

#include <algorithm>

namespace pipewright {

double Period(const OrderProblem& p) {
  double period = 0;
  for (int r = 0; r < p.ranks; ++r) {
    double work = 0;
    for (int s : p.held[r]) work += p.F[p.At(s, r)] + p.I[p.At(s, r)] + p.W[p.At(s, r)];
    period = std::max(period, work);
  }
  return period;
}

int Passes(const OrderProblem& p) { return std::max(1, p.stages / p.ranks); }

namespace {

constexpr double kUnknown = 1e300;

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
      longest_ = std::max(longest_, ranks_[r].work);
    }
  }

  PlayResult Run() {
    while (longest_ <= limit_) {
      auto next = std::min_element(wakes_.begin(), wakes_.end());
      if (*next >= kUnknown) break;
      now_ = *next;
      Turn(static_cast<int>(next - wakes_.begin()), now_);
    }
    for (const Rank& rank : ranks_)
      if (rank.left || rank.done < rank.pending.size()) return std::move(result_);
    result_.times.ok = true;
    for (const Rank& rank : ranks_) {
      if (rank.first < 0) continue;
      double span = rank.last - rank.first;
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
  double limit_, period_, ramp_, now_ = 0;
  double longest_ = 0;  // the least that the longest span can still be
  std::vector<Rank> ranks_;
  std::vector<double> wakes_;         // when each rank has its next turn
  std::vector<int> next_f_, next_i_;  // [stage]
  std::vector<double> forward_, backward_;
  PlayResult result_;

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
        due_f_[at] = due_.forward[s] + passed + in[m] * due_.forward_in[s] +
                     out[m] * due_.forward_out[s];
        due_i_[at] = due_.backward[s] + passed + in[m] * due_.backward_in[s] +
                     out[m] * due_.backward_out[s];
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
      rank.idle += now - rank.last;
      longest_ = std::max(longest_, rank.work + rank.idle);
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

PlayResult PlayDue(const OrderProblem& problem, const DueTimes& due, const Order& start_up,
                   double limit) {
  return Player(problem, due, start_up, limit).Run();
}

}  // namespace pipewright
