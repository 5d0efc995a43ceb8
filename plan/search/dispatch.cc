#include "plan/search/dispatch.h"

#include <algorithm>

namespace pipewright {

double Period(const OrderProblem& p) {
  double period = 0;
  for (int r = 0; r < p.ranks; ++r) {
    double work = 0;
    for (int s : p.held[r]) {
      const OpCosts& c = p.On(s, r);
      work += c.F + c.I + c.W;
    }
    period = std::max(period, work);
  }
  return period;
}

int PassesOverRanks(const OrderProblem& p) { return std::max(1, p.stages / p.ranks); }

namespace {

class ScriptRule : public DispatchRule {
 public:
  ScriptRule(const OrderProblem& p, const RankOrders& script, double gap_share)
      : p_(p), script_(script), gap_share_(gap_share), position_(p.ranks, 0) {
    for (const auto& list : script) left_ += list.size();
  }

  double Choose(const DispatchState& state, int r, double now, Op& op) {
    const DispatchState::Rank& rank = state.ranks[r];
    const Op* w = rank.done < rank.pending.size() ? &rank.pending[rank.done] : nullptr;
    if (position_[r] == script_[r].size()) {
      if (w) op = *w;
      return w ? now : kNever;
    }
    const double limit = p_.Limit(r);
    auto fits = [&](const Op& o) {
      return rank.bytes + p_.Of(o.stage, o.microbatch).Memory(o.kind, false).during <= limit;
    };
    auto here = script_[r].begin() + static_cast<std::ptrdiff_t>(position_[r]);
    if (!fits(*here) && !w) {
      if (here->kind != OpKind::kF) return -1;
      auto next =
          std::find_if(here, script_[r].end(), [](const Op& o) { return o.kind == OpKind::kI; });
      if (next == script_[r].end()) return -1;
      std::rotate(here, next, next + 1);
      if (!fits(*here)) return -1;
    }
    const auto& inputs = here->kind == OpKind::kF ? state.forward : state.backward;
    double ready = inputs[p_.At(here->stage, here->microbatch)];
    if (!fits(*here) ||
        (ready > now && w && ready - now >= gap_share_ * p_.Of(w->stage, w->microbatch).W)) {
      op = *w;
      return now;
    }
    if (ready > now) return ready;
    op = *here;
    ++position_[r];
    --left_;
    return now;
  }

  bool Complete() const { return left_ == 0; }

 private:
  const OrderProblem& p_;
  RankOrders script_;
  double gap_share_;
  size_t left_ = 0;
  std::vector<size_t> position_;
};

class DueRule : public DispatchRule {
 public:
  DueRule(const OrderProblem& p, const DueTimes& due, const RankOrders& start_up, double limit)
      : p_(p),
        due_(due),
        start_up_(start_up),
        limit_(limit),
        period_(Period(p)),
        ramp_(std::min<double>(p.microbatches, 1.25 * p.ranks)),
        ranks_(p.ranks),
        next_f_(p.stages),
        next_i_(p.stages) {
    Dues();
    for (int r = 0; r < p.ranks; ++r) {
      ranks_[r].left = ranks_[r].all = 2 * p.held[r].size() * static_cast<size_t>(p.microbatches);
      for (int s : p.held[r]) {
        const OpCosts& c = p.costs[s];
        ranks_[r].work += p.microbatches * (c.F + (p.forward_only ? 0 : c.I + c.W));
      }
      ranks_[r].start_up = static_cast<size_t>(due.first * static_cast<double>(start_up[r].size()));
      longest_ = std::max(longest_, ranks_[r].work);
    }
  }

  double Choose(const DispatchState& state, int r, double now, Op& op) {
    const DispatchState::Rank& held = state.ranks[r];
    Rank& rank = ranks_[r];
    double room = p_.Limit(r), soon = kNever, least = kNever, late = Late(r);
    double horizon = now + At(due_.linger, late), start = kNever;
    bool blocked = false;
    auto consider = [&](OpKind kind, int s, int m, double ready, double due) {
      if (ready > horizon) {
        soon = std::min(soon, ready);
      } else if (due < least) {
        op = {kind, s, m}, least = due, start = ready;
      }
    };
    if (rank.position < rank.start_up) {
      const Op& first = start_up_[r][rank.position];
      double ready = state.forward[p_.At(first.stage, first.microbatch)];
      if (ready <= now) {
        ++rank.position;
        op = first;
        return Started(op, r, now);
      }
      soon = ready;
    } else {
      double reserve = Reserve(r);
      for (int s : p_.held[r]) {
        const StageMemory& memory = p_.costs[s].memory;
        int m = next_i_[s];
        if (m < next_f_[s] && !p_.forward_only &&
            held.bytes + InputGradMemory(memory).during <= room) {
          size_t at = p_.At(s, m);
          consider(OpKind::kI, s, m, state.backward[at], due_i_[at]);
        }
        m = next_f_[s];
        if (m == p_.microbatches) continue;
        size_t at = p_.At(s, m);
        double ready = state.forward[at];
        if (ready == kNever) continue;
        double due = due_f_[at];
        // The reserve may include this microbatch already, which must not count twice.
        double kept_free = reserve - (m == next_i_[s] ? memory.stored : 0);
        if (held.bytes + memory.stored + kept_free > room) {
          blocked |= ready <= now && due - due_.lead <= now && due < least;
          continue;
        }
        consider(OpKind::kF, s, m, std::max(ready, due - due_.lead), due);
      }
    }
    if (least < kNever && start <= now) return Started(op, r, now);
    double next = least == kNever ? soon : start;
    if (held.done == held.pending.size()) return next;
    const Op& w = held.pending[held.done];
    if (!blocked && next - now < At(due_.gap_share, late) * p_.costs[w.stage].W) return next;
    op = w;
    return now;
  }

  double Linger(int r) const { return At(due_.linger, Late(r)); }
  void Idle(int r, double time) {
    ranks_[r].idle += time;
    longest_ = std::max(longest_, ranks_[r].work + ranks_[r].idle);
  }
  bool Enough() const { return longest_ > limit_; }
  bool Complete() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.left == 0; });
  }

 private:
  struct Rank {
    double idle = 0, work = 0;
    size_t left = 0, all = 0, start_up = 0, position = 0;
  };
  const OrderProblem& p_;
  const DueTimes& due_;
  const RankOrders& start_up_;
  double limit_, period_, ramp_;
  double longest_ = 0;  // a lower bound on the longest span
  std::vector<Rank> ranks_;
  std::vector<int> next_f_, next_i_;   // [stage]
  std::vector<double> due_f_, due_i_;  // [p.At(stage, microbatch)]

  void Dues() {
    size_t size = static_cast<size_t>(p_.stages) * p_.microbatches;
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

  double At(const std::array<double, DueTimes::kKnots>& knots, double late) const {
    double x = late * (DueTimes::kKnots - 1);
    int k = std::min(static_cast<int>(x), DueTimes::kKnots - 2);
    return knots[k] + (x - k) * (knots[k + 1] - knots[k]);
  }

  // Returns the share of its F and I that the rank has started, 0 to 1.
  double Late(int r) const {
    return 1 - static_cast<double>(ranks_[r].left) / static_cast<double>(ranks_[r].all);
  }

  // Returns the bytes reserved for one microbatch in each stage that holds none, and for an I.
  double Reserve(int r) const {
    double reserve = 0, most = 0;
    for (int s : p_.held[r]) {
      const StageMemory& memory = p_.costs[s].memory;
      most = std::max(most, InputGradMemory(memory).during);
      if (next_f_[s] == next_i_[s] && next_f_[s] < p_.microbatches) reserve += memory.stored;
    }
    return reserve + most;
  }

  double Started(const Op& op, int r, double now) {
    ranks_[r].left -= op.kind == OpKind::kF && p_.forward_only ? 2 : 1;
    ++(op.kind == OpKind::kF ? next_f_ : next_i_)[op.stage];
    return now;
  }
};

}  // namespace

TimedOrder PlayScript(const OrderProblem& problem, const RankOrders& script, double gap_share) {
  ScriptRule rule(problem, script, gap_share);
  return Dispatch(problem, rule);
}

TimedOrder PlayDue(const OrderProblem& problem, const DueTimes& due, const RankOrders& start_up,
                   double limit) {
  DueRule rule(problem, due, start_up, limit);
  return Dispatch(problem, rule);
}

}  // namespace pipewright
