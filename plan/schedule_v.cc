// V-Half and V-Min (Qi et al., Pipeline Parallelism with Controllable Memory, 2405.15362): a
// building block of one microbatch repeated every six slots, squeezed, then reordered in warm-up
// and cool-down without raising the peak of held activations.
#include <algorithm>
#include <array>

#include "plan/actions.h"
#include "plan/compute_times.h"
#include "plan/list_schedule.h"
#include "plan/schedule_kinds.h"
#include "plan/stage_graph.h"

namespace pipewright {

namespace {

constexpr int kPeriod = 6;  // F, I and W of two stages
// The kinds of compute a rank has, those of its first stage then those of its second.
constexpr int kOps = 6;

int OpOf(const Action& a, int ranks) {
  return (a.kind == ActionKind::kForward     ? 0
          : a.kind == ActionKind::kInputGrad ? 1
                                             : 2) +
         (a.stage >= ranks ? 3 : 0);
}

struct VShape {
  const ScheduleRequest& q;
  int p, m;   // ranks; microbatches, enough for a steady state
  int limit;  // stages' activations a rank may hold, from F to W

  int Far(int rank) const { return 2 * p - 1 - rank; }

  // F and I of a rank in the order of the repeated building block.
  std::vector<std::vector<Action>> Blocks(bool half) const {
    int shift = half ? (p % 2 == 0 ? 3 : 0) : (p % 3 == 0 ? 2 : 0);
    std::vector<std::vector<Action>> orders(p);
    for (int i = 0; i < p; ++i) {
      const int at[4] = {half ? 2 * i : i, half ? 3 * p - i - 2 : 2 * p - i - 1,
                         half ? 3 * p + shift + 2 * i - 1 : 2 * p + shift + i,
                         half ? 6 * p + shift - i - 2 : 4 * p + shift - i - 1};
      std::vector<std::pair<int, Action>> slots;
      for (int k = 0; k < m; ++k) {
        int t = kPeriod * k;
        slots.push_back({t + at[0], Compute(ActionKind::kForward, i, k)});
        slots.push_back({t + at[1], Compute(ActionKind::kForward, Far(i), k)});
        slots.push_back({t + at[2], Compute(ActionKind::kInputGrad, Far(i), k)});
        slots.push_back({t + at[3], Compute(ActionKind::kInputGrad, i, k)});
      }
      std::stable_sort(slots.begin(), slots.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      for (const auto& slot : slots) orders[i].push_back(slot.second);
    }
    return orders;
  }

  // The given order of F and I, each as soon as it is ready and memory allows; W when nothing is.
  Plan Squeeze(const std::vector<std::vector<Action>>& orders) const {
    Playout play(q.placement, p, m);
    std::vector<size_t> next(p), weight(p);
    std::vector<std::vector<Action>> weights(p);
    std::vector<int> held(p);
    return play.Run([&](int rank, int now) {
      if (next[rank] < orders[rank].size()) {
        const Action& a = orders[rank][next[rank]];
        bool forward = a.kind == ActionKind::kForward;
        if (!(forward && held[rank] >= limit) && play.Ready(a, now)) {
          ++next[rank];
          held[rank] += forward;
          if (!forward)
            weights[rank].push_back(Compute(ActionKind::kWeightGrad, a.stage, a.microbatch));
          return a;
        }
      }
      if (weight[rank] == weights[rank].size()) return Compute(ActionKind::kStep, -1, -1);
      --held[rank];
      return weights[rank][weight[rank]++];
    });
  }

  // The longest time from a rank's first compute to its last, at unit costs.
  int64_t Span(const Plan& plan) const {
    StageGraph graph = ChainGraph(q.placement);
    int64_t span = 0;
    for (const auto& ends : UnitEnds(plan, graph, IndexCompute(plan, graph)))
      span = std::max(span, ends.back() - ends.front() + 1);
    return span;
  }

  // Goes through the time slots and moves into every idle one the first later compute of its rank
  // that is ready there, all others unmoved; a forward only where the peak allows it.
  Plan FillIdle(Plan plan) const {
    plan.stages = 2 * p, plan.microbatches = m;
    StageGraph graph = ChainGraph(q.placement);
    auto ends = UnitEnds(plan, graph, IndexCompute(plan, graph));
    size_t slots = 0;
    for (const auto& e : ends) slots = std::max(slots, static_cast<size_t>(e.back()));
    const Action idle = Compute(ActionKind::kStep, -1, -1);
    std::vector<std::vector<Action>> grid(p, std::vector<Action>(slots, idle));
    for (int r = 0; r < p; ++r)
      for (size_t k = 0; k < ends[r].size(); ++k) grid[r][ends[r][k] - 1] = plan.ranks[r][k];
    Done done(2 * p, m);
    std::vector<int> held(p);
    for (size_t now = 0; now < slots; ++now)
      for (int r = 0; r < p; ++r) {
        if (grid[r][now].stage < 0) Pull(grid[r], now, held[r], done);
        const Action& a = grid[r][now];
        if (a.stage < 0) continue;
        done.Put(a, static_cast<int>(now));
        held[r] += (a.kind == ActionKind::kForward) - (a.kind == ActionKind::kWeightGrad);
      }
    for (int r = 0; r < p; ++r) {
      plan.ranks[r].clear();
      for (const Action& a : grid[r])
        if (a.stage >= 0) plan.ranks[r].push_back(a);
    }
    return plan;
  }

  // When each F and I was done, by slot.
  struct Done {
    int stages, m;
    std::vector<int> forward, input;
    Done(int stages, int m)
        : stages(stages), m(m), forward(static_cast<size_t>(stages) * m, 1 << 30), input(forward) {}
    size_t At(int s, int i) const { return static_cast<size_t>(s) * m + i; }
    void Put(const Action& a, int slot) {
      if (a.kind == ActionKind::kForward) forward[At(a.stage, a.microbatch)] = slot;
      if (a.kind == ActionKind::kInputGrad) input[At(a.stage, a.microbatch)] = slot;
    }
    bool Ready(const Action& a, int slot) const {
      int s = a.stage, i = a.microbatch;
      if (a.kind == ActionKind::kForward) return s == 0 || forward[At(s - 1, i)] < slot;
      if (a.kind == ActionKind::kWeightGrad) return input[At(s, i)] < slot;
      return forward[At(s, i)] < slot && (s + 1 == stages || input[At(s + 1, i)] < slot);
    }
  };

  void Pull(std::vector<Action>& row, size_t now, int held, const Done& done) const {
    std::array<bool, kOps> seen{};
    int kinds = 0, change = 0, peak = 0;
    for (size_t k = now + 1; k < row.size() && kinds < kOps; ++k) {
      const Action& a = row[k];
      if (a.stage < 0) continue;
      int before = peak;
      change += (a.kind == ActionKind::kForward) - (a.kind == ActionKind::kWeightGrad);
      peak = std::max(peak, change);
      bool& known = seen[OpOf(a, p)];
      if (known) continue;
      known = true, ++kinds;
      if (a.kind == ActionKind::kForward && held + before >= limit) continue;
      if (!done.Ready(a, static_cast<int>(now))) continue;
      row[now] = a;
      row[k] = Compute(ActionKind::kStep, -1, -1);
      return;
    }
  }

  // From a rank's last forwards of its first stage on: second stage before first, forward before I
  // before W, except that a forward which only memory holds back gets a W first.
  // `back`: how many actions up to the last such forward may be reordered too.
  Plan CoolDown(const Plan& plan, size_t back) const {
    Playout play(q.placement, p, m);
    std::vector<size_t> cut(p), next(p);
    std::vector<int> held(p);
    std::vector<std::array<std::vector<Action>, kOps>> left(p);
    std::vector<std::array<size_t, kOps>> at(p);
    for (int r = 0; r < p; ++r) {
      const auto& actions = plan.ranks[r];
      size_t last = 0;
      for (size_t k = 0; k < actions.size(); ++k)
        if (actions[k].kind == ActionKind::kForward && actions[k].stage == r) last = k;
      cut[r] = last + 1 > back ? last + 1 - back : 0;
      for (size_t k = cut[r]; k < actions.size(); ++k)
        left[r][OpOf(actions[k], p)].push_back(actions[k]);
      for (auto& list : left[r])
        std::sort(list.begin(), list.end(),
                  [](const Action& a, const Action& b) { return a.microbatch < b.microbatch; });
      at[r].fill(0);
    }
    return play.Run([&](int r, int now) {
      const Action idle = Compute(ActionKind::kStep, -1, -1);
      Action chosen = idle;
      if (next[r] < cut[r]) {
        const Action& a = plan.ranks[r][next[r]];
        if (play.Ready(a, now)) chosen = a, ++next[r];
      } else {
        auto ready = [&](int op) {
          return at[r][op] < left[r][op].size() && play.Ready(left[r][op][at[r][op]], now);
        };
        bool weight = ready(2) || ready(5), blocked = false;
        for (int op : {3, 0, 4, 1, 5, 2}) {  // F, F, I, I, W, W; second stage first
          if (!ready(op)) continue;
          if (op % 3 == 0 && held[r] >= limit) {
            blocked = true;
            continue;
          }
          if (op % 3 == 1 && blocked && weight) continue;
          chosen = left[r][op][at[r][op]++];
          break;
        }
      }
      held[r] += (chosen.kind == ActionKind::kForward) - (chosen.kind == ActionKind::kWeightGrad);
      return chosen;
    });
  }
};

// How much of V-Half's cool-down is free, round after round: a cool-down, idle slots filled,
// another cool-down. Half of the ranks' number is right for up to 24 ranks; on more it is not
// regular, so values are tried until one gives the paper's 3P - 7 beyond the work.
std::vector<size_t> FreeCoolDowns(const ScheduleRequest& q, int limit) {
  int p = q.ranks, m = 2 * p;
  size_t half = static_cast<size_t>(p) / 2;
  if (p <= 24 || p % 2 || p > 512) return {half};
  VShape shape{q, p, m, limit};
  int64_t enough = static_cast<int64_t>(kPeriod) * m + 3 * p - 7, least = -1;
  // On many ranks fewer are tried: no more than some million actions are placed.
  int tries = std::max(1, 3'000'000 / (12 * p * p));
  size_t stride = p <= 64 ? 1 : 1 + 2 * static_cast<size_t>(p) / static_cast<size_t>(tries);
  std::vector<size_t> best;
  auto scan = [&](const Plan& filled, const std::vector<size_t>& before) {
    for (size_t k = 0; k <= 2 * static_cast<size_t>(p) && least != enough; k += stride) {
      size_t back = k == 0 ? half : k - 1;
      int64_t span = shape.Span(shape.CoolDown(filled, back));
      if (least >= 0 && span >= least) continue;
      least = span;
      best = before;
      best.push_back(back);
    }
  };
  Plan filled = shape.FillIdle(shape.Squeeze(shape.Blocks(true)));
  scan(filled, {});
  for (size_t back : {best[0], half})
    if (least != enough && p <= 48) scan(shape.FillIdle(shape.CoolDown(filled, back)), {back});
  return best;
}

Plan Controlled(const ScheduleRequest& q, bool half) {
  int p = q.ranks, m = std::max(q.microbatches, 2 * p);
  int limit = half ? 2 * ((p + 2) / 2) : 2 * ((p + 4) / 3);
  VShape shape{q, p, m, limit};
  Plan plan = shape.Squeeze(shape.Blocks(half));
  for (size_t back : half ? FreeCoolDowns(q, limit) : std::vector<size_t>{0})
    plan = shape.CoolDown(shape.FillIdle(std::move(plan)), back);
  Trim(plan, q.stages, q.microbatches);
  return plan;
}

}  // namespace

Plan VHalf(const ScheduleRequest& q) { return Controlled(q, true); }
Plan VMin(const ScheduleRequest& q) { return Controlled(q, false); }

}  // namespace pipewright
