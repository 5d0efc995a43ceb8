#include "plan/zb_scripts.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <tuple>

#include "plan/actions.h"

namespace pipewright {

Order ScriptOf(const Plan& schedule) {
  Order script;
  for (const auto& actions : schedule.ranks) {
    auto& list = script.emplace_back();
    for (const Action& a : actions) {
      if (HasForward(a)) list.push_back({OpKind::kF, a.stage, a.microbatch});
      if (HasBackward(a)) list.push_back({OpKind::kI, BackwardStage(a), BackwardMicrobatch(a)});
    }
  }
  return script;
}

Order OrderOf(const Plan& schedule) {
  Order order;
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

Order WarmScript(const OrderProblem& p, const std::vector<int>& warm) {
  Order script(p.ranks);
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

// How many forwards fit into a rank's memory, its stages taken in turns.
int Capacity(const OrderProblem& p, int rank) {
  double round = 0;
  for (int s : p.held[rank]) round += p.stored[p.At(s, rank)];
  int all = p.microbatches * static_cast<int>(p.held[rank].size());
  double fit = round > 0 ? p.room[rank] / round * static_cast<double>(p.held[rank].size()) : all;
  return static_cast<int>(
      std::min<double>(all, std::max(1.0, std::floor(fit * (1 + 1e-12) + 1e-9))));
}

}  // namespace

Order StartUp(const OrderProblem& p) {
  struct Rank {
    double wake = 0, free = 0;
    int left = 0;
  };
  constexpr double kUnknown = 1e300;
  std::vector<Rank> ranks(p.ranks);
  std::vector<double> ready(static_cast<size_t>(p.stages) * p.microbatches, kUnknown);
  std::fill(ready.begin(), ready.begin() + p.microbatches, 0);
  std::vector<int> next(p.stages, 0);
  Order order(p.ranks);
  using Turn = std::pair<double, int>;
  std::priority_queue<Turn, std::vector<Turn>, std::greater<Turn>> turns;
  for (int r = 0; r < p.ranks; ++r) {
    ranks[r].left = Capacity(p, r);
    turns.push({0, r});
  }
  while (!turns.empty()) {
    auto [now, r] = turns.top();
    turns.pop();
    Rank& rank = ranks[r];
    if (rank.wake != now || rank.left == 0) continue;
    int chosen = -1, later = 0;
    double soon = kUnknown;
    for (size_t i = p.held[r].size(); i-- > 0;) {
      int s = p.held[r][i];
      if (next[s] < p.microbatches && rank.left > later) {
        double at = ready[static_cast<size_t>(s) * p.microbatches + next[s]];
        if (at > now + 1e-9 * std::abs(now))
          soon = std::min(soon, at);
        else if (chosen < 0)
          chosen = s;
      }
      later += next[s] == 0;
    }
    if (chosen < 0) {
      rank.wake = soon < kUnknown ? soon : -1;
      if (rank.wake >= 0) turns.push({soon, r});
      continue;
    }
    int m = next[chosen]++;
    order[r].push_back({OpKind::kF, chosen, m});
    --rank.left;
    double end = now + p.F[p.At(chosen, r)];
    rank.free = rank.wake = end;
    turns.push({end, r});
    if (chosen + 1 == p.stages) continue;
    ready[static_cast<size_t>(chosen + 1) * p.microbatches + m] = end;
    int to = p.RankOf(chosen + 1, m);
    Rank& other = ranks[to];
    double turn = std::max(end, other.free);
    if (to != r && (other.wake < 0 || (other.wake > other.free && turn < other.wake)))
      turns.push({other.wake = turn, to});
  }
  return order;
}

Order PatternScript(const OrderProblem& p, double slack, double tolerance) {
  double period = 0;
  for (int r = 0; r < p.ranks; ++r) {
    double work = 0;
    for (int s : p.held[r]) work += p.F[p.At(s, r)] + p.I[p.At(s, r)] + p.W[p.At(s, r)];
    period = std::max(period, work);
  }
  std::vector<int> on(p.stages);
  for (int s = 0; s < p.stages; ++s) on[s] = p.placement[s][0];
  // When each rank can start its first I, were I as long as the longer of F and I.
  std::vector<double> base(p.ranks, -1);
  double time = 0;
  for (int s = 0; s < p.stages; ++s) time += p.F[p.At(s, on[s])] + (s + 1 < p.stages ? p.up[s] : 0);
  for (int s = p.stages; s-- > 0;) {
    if (base[on[s]] < 0) base[on[s]] = time;
    size_t at = p.At(s, on[s]);
    time += std::max(p.I[at], p.F[at]) + slack * p.W[at] + (s > 0 ? p.down[s - 1] : 0);
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
    size_t at = p.At(s, r);
    double earliest = s ? time + p.F[at] - tolerance * p.W[at] : base[r] - 1000 * period;
    forward[s] = take(r, earliest);
    time = base[r] + static_cast<double>(forward[s]) * width(r) + (s + 1 < p.stages ? p.up[s] : 0);
  }
  clear();
  for (int s = p.stages; s-- > 0;) {
    int r = on[s];
    size_t at = p.At(s, r);
    backward[s] = take(r, time - (s + 1 < p.stages ? tolerance * p.W[at] : 0));
    time = base[r] + static_cast<double>(backward[s]) * width(r) + p.I[at] +
           (s > 0 ? p.down[s - 1] : 0);
  }
  Order script = StartUp(p);
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
