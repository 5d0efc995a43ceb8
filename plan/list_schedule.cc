#include "plan/list_schedule.h"

#include <functional>
#include <queue>

namespace pipewright {

namespace {

constexpr int kNever = 1 << 30;

// What one rank has done of one of its stages.
struct Track {
  int stage = 0, first = 0, stride = 1;       // runs microbatches first, first + stride, ...
  int forward = 0, backward = 0, weight = 0;  // the next of each
};

struct Player {
  const Placement& placement;
  const ListPolicy& policy;
  int microbatches;
  std::vector<std::vector<Track>> tracks;      // [rank], stages ascending
  std::vector<int> forwards_left;              // [rank]
  std::vector<int> free_at;                    // [rank]
  std::vector<int> forward_end, backward_end;  // [stage * microbatches + microbatch]

  size_t At(int s, int i) const { return static_cast<size_t>(s) * microbatches + i; }
  int Rank(int s, int i) const { return placement[s][i % placement[s].size()]; }

  bool ForwardReady(const Track& t, int now) const {
    if (t.forward >= microbatches) return false;
    if (!policy.in_flight.empty()) {
      int done = policy.until_weight_grad && policy.split ? t.weight : t.backward;
      if ((t.forward - done) / t.stride >= policy.in_flight[t.stage]) return false;
    }
    return t.stage == 0 || forward_end[At(t.stage - 1, t.forward)] <= now;
  }

  bool BackwardReady(const Track& t, int now) const {
    if (t.backward >= microbatches || forward_end[At(t.stage, t.backward)] > now) return false;
    return t.stage + 1 == static_cast<int>(placement.size()) ||
           backward_end[At(t.stage + 1, t.backward)] <= now;
  }

  // Whether a W must come before anything else, because too many wait.
  bool WeightDue(const Track& t) const {
    return policy.split && t.weight < t.backward && !policy.weight_grads_held.empty() &&
           (t.backward - t.weight) / t.stride > policy.weight_grads_held[t.stage];
  }

  // What `rank` starts at `now`; kind kStep when nothing is ready.
  Action Choose(int rank, int now) {
    Action a;
    auto take = [&](ActionKind kind, Track& t, int& next) {
      a.kind = kind, a.stage = t.stage, a.microbatch = next;
      next += t.stride;
      return a;
    };
    auto& own = tracks[rank];
    for (Track& t : own)
      if (WeightDue(t)) return take(ActionKind::kWeightGrad, t, t.weight);
    bool backward = !policy.forwards_first || forwards_left[rank] == 0;
    for (size_t k = own.size(); backward && k-- > 0;)
      if (BackwardReady(own[k], now))
        return take(policy.split ? ActionKind::kInputGrad : ActionKind::kBackward, own[k],
                    own[k].backward);
    for (size_t k = own.size(); k-- > 0;)
      if (ForwardReady(own[k], now)) return take(ActionKind::kForward, own[k], own[k].forward);
    for (Track& t : own)
      if (policy.split && t.weight < t.backward) return take(ActionKind::kWeightGrad, t, t.weight);
    a.kind = ActionKind::kStep;
    return a;
  }
};

}  // namespace

Plan ListSchedule(const Placement& placement, int ranks, int microbatches,
                  const ListPolicy& policy) {
  int stages = static_cast<int>(placement.size());
  Player play{placement, policy, microbatches, {}, {}, {}, {}, {}};
  play.tracks.resize(ranks);
  play.forwards_left.resize(ranks);
  play.free_at.resize(ranks);
  size_t cells = static_cast<size_t>(stages) * microbatches;
  play.forward_end.assign(cells, kNever);
  play.backward_end.assign(cells, kNever);
  for (int s = 0; s < stages; ++s) {
    int r = static_cast<int>(placement[s].size());
    for (int k = 0; k < r; ++k) {
      Track t{s, k, r, k, k, k};
      play.tracks[placement[s][k]].push_back(t);
      play.forwards_left[placement[s][k]] += (microbatches - k + r - 1) / r;
    }
  }
  Plan plan;
  plan.stages = stages;
  plan.microbatches = microbatches;
  plan.ranks.resize(ranks);
  using Event = std::pair<int, int>;  // time, rank that may have something to do
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events;
  for (int r = 0; r < ranks; ++r) events.push({0, r});
  while (!events.empty()) {
    auto [now, rank] = events.top();
    events.pop();
    if (play.free_at[rank] > now) continue;
    Action a = play.Choose(rank, now);
    if (a.kind == ActionKind::kStep) continue;
    int end = now + (a.kind == ActionKind::kBackward ? 2 : 1);
    play.free_at[rank] = end;
    plan.ranks[rank].push_back(a);
    events.push({end, rank});
    if (a.kind == ActionKind::kForward) {
      play.forward_end[play.At(a.stage, a.microbatch)] = end;
      --play.forwards_left[rank];
      if (a.stage + 1 < stages) events.push({end, play.Rank(a.stage + 1, a.microbatch)});
    } else if (a.kind != ActionKind::kWeightGrad) {
      play.backward_end[play.At(a.stage, a.microbatch)] = end;
      if (a.stage > 0) events.push({end, play.Rank(a.stage - 1, a.microbatch)});
    }
  }
  return plan;
}

std::vector<int> PipelineDepths(const Placement& placement) {
  std::vector<int> depths(placement.size());
  int replicas = 0;
  for (size_t s = placement.size(); s-- > 0;) {
    int own = static_cast<int>(placement[s].size());
    if (s + 1 == placement.size() || placement[s] != placement[s + 1]) replicas += own;
    depths[s] = (replicas + own - 1) / own;
  }
  return depths;
}

}  // namespace pipewright
