#include "plan/compute_times.h"

#include <algorithm>

#include "plan/actions.h"
#include "plan/error.h"
#include "plan/stage_graph.h"

namespace pipewright {

static int UnitCost(ActionKind kind) {
  return kind == ActionKind::kOverlap ? 3 : kind == ActionKind::kBackward ? 2 : 1;
}

namespace {

struct Clock {
  const Plan& plan;
  const StageGraph& graph;
  const ComputeIndex& index;
  EdgeIndex edges;
  std::vector<std::vector<int64_t>> ends;

  // Whether what `place` does has ended; `ready` rises to its end.
  bool Ended(const ComputePlace& place, int64_t& ready) const {
    if (ends[place.rank].size() <= static_cast<size_t>(place.position)) return false;
    ready = std::max(ready, ends[place.rank][place.position]);
    return true;
  }

  // The first thing that `a` waits for and that has not ended; rank -1 when there is none.
  ComputePlace Missing(const Action& a, int64_t& ready) const {
    if (HasForward(a))
      for (int e : edges.in[a.stage]) {
        const ComputePlace& p = index.forward[index.At(graph.edges[e].from, a.microbatch)];
        if (!Ended(p, ready)) return p;
      }
    if (HasBackward(a))
      for (int e : edges.out[BackwardStage(a)]) {
        if (!graph.edges[e].gradient) continue;
        const ComputePlace& p = index.backward[index.At(graph.edges[e].to, BackwardMicrobatch(a))];
        if (!Ended(p, ready)) return p;
      }
    return {};
  }
};

Error Stuck(const Clock& clock) {
  std::string blocked;
  std::string where;
  int shown = 0;
  for (size_t r = 0; r < clock.ends.size(); ++r) {
    size_t at = clock.ends[r].size();
    if (at == clock.plan.ranks[r].size()) continue;
    int64_t ready = 0;
    ComputePlace p = clock.Missing(clock.plan.ranks[r][at], ready);
    std::string place = Place(static_cast<int>(r), at, clock.plan.ranks[r][at]);
    if (where.empty()) where = place;
    if (shown++ < 4)
      blocked += (blocked.empty() ? "" : "; ") + place + " waits for " +
                 Place(p.rank, p.position, clock.plan.ranks[p.rank][p.position]);
  }
  return Error(where, "rule \"deadlock\": the order can never finish: " + blocked);
}

}  // namespace

std::vector<std::vector<int64_t>> UnitEnds(const Plan& schedule, const StageGraph& graph,
                                           const ComputeIndex& index) {
  size_t ranks = schedule.ranks.size();
  Clock clock{schedule, graph, index, IndexEdges(graph), {}};
  clock.ends.resize(ranks);
  for (size_t r = 0; r < ranks; ++r) clock.ends[r].reserve(schedule.ranks[r].size());
  // Each rank waits for one place at a time; it is listed with the rank it waits for.
  std::vector<std::vector<std::pair<int, int>>> waiting(ranks);  // (position, who waits)
  std::vector<int> runnable;
  for (size_t r = ranks; r-- > 0;) runnable.push_back(static_cast<int>(r));
  size_t finished = 0;
  while (!runnable.empty()) {
    int r = runnable.back();
    runnable.pop_back();
    auto& ends = clock.ends[r];
    const auto& actions = schedule.ranks[r];
    while (ends.size() < actions.size()) {
      const Action& a = actions[ends.size()];
      int64_t ready = ends.empty() ? 0 : ends.back();
      ComputePlace missing = clock.Missing(a, ready);
      if (missing.rank >= 0) {
        waiting[missing.rank].emplace_back(missing.position, r);
        break;
      }
      ends.push_back(ready + UnitCost(a.kind));
    }
    finished += ends.size() == actions.size();
    auto& waiters = waiting[r];
    auto woken = std::partition(waiters.begin(), waiters.end(), [&](const auto& w) {
      return static_cast<size_t>(w.first) >= ends.size();
    });
    for (auto w = woken; w != waiters.end(); ++w) runnable.push_back(w->second);
    waiters.erase(woken, waiters.end());
  }
  if (finished < ranks) throw Stuck(clock);
  return std::move(clock.ends);
}

}  // namespace pipewright
