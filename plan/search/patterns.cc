#include "plan/search/patterns.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "plan/actions.h"
#include "plan/search/dispatch.h"

namespace pipewright {

RankOrders ScriptOf(const Plan& schedule) {
  RankOrders script;
  for (const auto& actions : schedule.ranks) {
    auto& list = script.emplace_back();
    for (const Action& a : actions) {
      if (HasForward(a)) list.push_back({OpKind::kF, a.stage, a.microbatch});
      if (HasBackward(a)) list.push_back({OpKind::kI, BackwardStage(a), BackwardMicrobatch(a)});
    }
  }
  return script;
}

RankOrders RankOrdersOf(const Plan& schedule) {
  RankOrders order;
  for (const auto& actions : schedule.ranks) {
    auto& list = order.emplace_back();
    for (const Action& a : actions) {
      int stage = BackwardStage(a), microbatch = BackwardMicrobatch(a);
      if (HasForward(a)) list.push_back({OpKind::kF, a.stage, a.microbatch});
      if (HasBackward(a)) list.push_back({OpKind::kI, stage, microbatch});
      if (a.kind == ActionKind::kWeightGrad || (HasBackward(a) && a.kind != ActionKind::kInputGrad))
        list.push_back({OpKind::kW, stage, microbatch});
    }
  }
  return order;
}

RankOrders WarmScript(const OrderProblem& p, const std::vector<int>& warm) {
  RankOrders script(p.ranks);
  for (int r = 0; r < p.ranks; ++r) {
    if (p.held[r].empty()) continue;
    int stage = p.held[r][0];
    std::vector<int> own;
    for (int m = 0; m < p.microbatches; ++m)
      if (p.RankOf(stage, m) == r) own.push_back(m);
    size_t next = std::min(own.size(), static_cast<size_t>(std::max(1, warm[r])));
    for (size_t i = 0; i < next; ++i) script[r].push_back({OpKind::kF, stage, own[i]});
    for (int m : own) {
      script[r].push_back({OpKind::kI, stage, m});
      if (next < own.size()) script[r].push_back({OpKind::kF, stage, own[next++]});
    }
  }
  return script;
}

namespace {

// Returns the number of forwards that fit into a rank's memory if its stages take turns.
int Capacity(const OrderProblem& p, int rank) {
  double round = 0;
  for (int s : p.held[rank]) round += p.On(s, rank).memory.stored;
  int all = p.microbatches * static_cast<int>(p.held[rank].size());
  double fit = round > 0 ? p.room[rank] / round * static_cast<double>(p.held[rank].size()) : all;
  return static_cast<int>(
      std::min<double>(all, std::max(1.0, std::floor(fit * (1 + 1e-12) + 1e-9))));
}

// Runs the latest stage that is ready, but leaves a forward for each later stage that had none.
struct StartUpRule : DispatchRule {
  std::vector<int> left;  // [rank]
  std::vector<int> next;  // [stage]

  double Choose(const DispatchState& state, int r, double now, Op& op) {
    int later = 0;
    double soon = kNever;
    for (size_t i = state.p.held[r].size(); i-- > 0 && left[r] > 0;) {
      int s = state.p.held[r][i];
      if (next[s] < state.p.microbatches && left[r] > later) {
        double at = state.forward[state.p.At(s, next[s])];
        if (at <= now + 1e-9 * now) {
          op = {OpKind::kF, s, next[s]++};
          --left[r];
          return now;
        }
        soon = std::min(soon, at);
      }
      later += next[s] == 0;
    }
    return soon;
  }
  bool Complete() const { return true; }
};

}  // namespace

RankOrders StartUp(const OrderProblem& given) {
  OrderProblem p = given;
  p.forward_only = true;  // Capacity limits memory: no backward frees any here
  std::fill(p.up.begin(), p.up.end(), 0);
  StartUpRule rule;
  for (int r = 0; r < p.ranks; ++r) rule.left.push_back(Capacity(p, r));
  rule.next.assign(p.stages, 0);
  return Dispatch(p, rule).order;
}

RankOrders PatternScript(const OrderProblem& p, double slack, double tolerance) {
  const double period = Period(p);
  std::vector<int> on(p.stages);
  for (int s = 0; s < p.stages; ++s) on[s] = p.placement[s][0];
  // Finds the time at which each rank can start its first I if I takes max(F, I).
  std::vector<double> base(p.ranks, -1);
  double time = 0;
  for (int s = 0; s < p.stages; ++s) time += p.costs[s].F + (s + 1 < p.stages ? p.up[s] : 0);
  for (int s = p.stages; s-- > 0;) {
    if (base[on[s]] < 0) base[on[s]] = time;
    const OpCosts& c = p.costs[s];
    time += std::max(c.I, c.F) + slack * c.W + (s > 0 ? p.down[s - 1] : 0);
  }
  // Slot n of rank r: an F that ends, and an I that starts, at base + n * period / stages held.
  std::vector<std::vector<char>> used(p.ranks);
  auto width = [&](int r) { return period / static_cast<double>(p.held[r].size()); };
  auto take = [&](int r, double earliest) {
    long count = static_cast<long>(p.held[r].size());
    long n = static_cast<long>(std::ceil((earliest - base[r]) / width(r) - 1e-6));
    while (used[r][((n % count) + count) % count]) ++n;
    used[r][((n % count) + count) % count] = 1;
    return n;
  };
  auto clear = [&] {
    for (int r = 0; r < p.ranks; ++r) used[r].assign(p.held[r].size(), 0);
  };
  std::vector<long> forward(p.stages), backward(p.stages);
  clear();
  for (int s = 0; s < p.stages; ++s) {
    int r = on[s];
    const OpCosts& c = p.costs[s];
    double earliest = s ? time + c.F - tolerance * c.W : base[r] - 1000 * period;
    forward[s] = take(r, earliest);
    time = base[r] + static_cast<double>(forward[s]) * width(r) + (s + 1 < p.stages ? p.up[s] : 0);
  }
  clear();
  for (int s = p.stages; s-- > 0;) {
    int r = on[s];
    const OpCosts& c = p.costs[s];
    backward[s] = take(r, time - (s + 1 < p.stages ? tolerance * c.W : 0));
    time = base[r] + static_cast<double>(backward[s]) * width(r) + c.I +
           (s > 0 ? p.down[s - 1] : 0);
  }
  RankOrders script = StartUp(p);
  for (int r = 0; r < p.ranks; ++r) {
    long count = static_cast<long>(p.held[r].size());
    std::vector<int> started(p.stages, 0);
    for (const Op& op : script[r])
      started[op.stage] = std::max(started[op.stage], op.microbatch + 1);
    struct Slot {
      long slot;
      Op op;
    };
    std::vector<Slot> slots;
    for (int s : p.held[r])
      for (int m = 0; m < p.microbatches; ++m) {
        if (m >= started[s]) slots.push_back({forward[s] + m * count, {OpKind::kF, s, m}});
        slots.push_back({backward[s] + m * count, {OpKind::kI, s, m}});
      }
    std::sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) {
      return std::tuple(a.slot, a.op.kind, a.op.stage) < std::tuple(b.slot, b.op.kind, b.op.stage);
    });
    for (const Slot& slot : slots) script[r].push_back(slot.op);
  }
  return script;
}

}  // namespace pipewright
