#include "plan/list_schedule.h"

#include <queue>

#include "plan/actions.h"
#include "plan/schedule_kinds.h"

namespace pipewright {

namespace {

constexpr int kNever = 1 << 30;

// What one rank has done of one of its stages.
struct Track {
  int stage = 0, stride = 1;                  // it runs every stride-th microbatch
  int forward = 0, backward = 0, weight = 0;  // the next of each
};

struct Chooser {
  const Playout& play;
  const ListPolicy& policy;
  int microbatches;
  std::vector<std::vector<Track>> tracks;  // [rank], stages ascending
  std::vector<int> forwards_left;          // [rank]

  bool ForwardReady(const Track& t, int now) const {
    if (t.forward >= microbatches) return false;
    if (!policy.in_flight.empty() &&
        (t.forward - t.backward) / t.stride >= policy.in_flight[t.stage])
      return false;
    return play.Ready(Compute(ActionKind::kForward, t.stage, t.forward), now);
  }

  bool BackwardReady(const Track& t, int now) const {
    return t.backward < microbatches &&
           play.Ready(Compute(ActionKind::kBackward, t.stage, t.backward), now);
  }

  // Whether a W must come before anything else, because too many wait.
  bool WeightDue(const Track& t) const {
    return policy.split && t.weight < t.backward && !policy.weight_grads_held.empty() &&
           (t.backward - t.weight) / t.stride > policy.weight_grads_held[t.stage];
  }

  Action Choose(int rank, int now) {
    auto take = [](ActionKind kind, const Track& t, int& next) {
      Action a = Compute(kind, t.stage, next);
      next += t.stride;
      return a;
    };
    auto& own = tracks[rank];
    for (Track& t : own)
      if (WeightDue(t)) return take(ActionKind::kWeightGrad, t, t.weight);
    bool backward = !policy.forwards_first || forwards_left[rank] == 0;
    for (size_t n = 0; backward && n < own.size(); ++n) {
      Track& t = own[policy.backward_from_first ? n : own.size() - 1 - n];
      if (BackwardReady(t, now))
        return take(policy.split ? ActionKind::kInputGrad : ActionKind::kBackward, t, t.backward);
    }
    for (size_t k = own.size(); k-- > 0;)
      if (ForwardReady(own[k], now)) {
        --forwards_left[rank];
        return take(ActionKind::kForward, own[k], own[k].forward);
      }
    for (Track& t : own)
      if (policy.split && t.weight < t.backward) return take(ActionKind::kWeightGrad, t, t.weight);
    return Compute(ActionKind::kStep, -1, -1);
  }
};

}  // namespace

Playout::Playout(const Placement& placement, int ranks, int microbatches)
    : placement_(placement),
      ranks_(ranks),
      stages_(static_cast<int>(placement.size())),
      microbatches_(microbatches),
      forward_end_(static_cast<size_t>(stages_) * microbatches, kNever),
      backward_end_(forward_end_) {}

bool Playout::Ready(const Action& a, int now) const {
  int s = a.stage, i = a.microbatch;
  if (a.kind == ActionKind::kForward) return s == 0 || forward_end_[At(s - 1, i)] <= now;
  if (a.kind == ActionKind::kWeightGrad) return backward_end_[At(s, i)] <= now;
  return forward_end_[At(s, i)] <= now && (s + 1 == stages_ || backward_end_[At(s + 1, i)] <= now);
}

Plan Playout::Run(const std::function<Action(int, int)>& choose) {
  Plan plan;
  plan.stages = stages_;
  plan.microbatches = microbatches_;
  plan.ranks.resize(ranks_);
  std::vector<int> free_at(ranks_);
  using Event = std::pair<int, int>;  // time, rank that may have something to do
  std::priority_queue<Event, std::vector<Event>, std::greater<Event>> events;
  for (int r = 0; r < ranks_; ++r) events.push({0, r});
  while (!events.empty()) {
    auto [now, rank] = events.top();
    events.pop();
    if (free_at[rank] > now) continue;
    Action a = choose(rank, now);
    if (a.kind == ActionKind::kStep) continue;
    int end = now + (a.kind == ActionKind::kBackward ? 2 : 1);
    free_at[rank] = end;
    plan.ranks[rank].push_back(a);
    events.push({end, rank});
    if (a.kind == ActionKind::kForward) {
      forward_end_[At(a.stage, a.microbatch)] = end;
      if (a.stage + 1 < stages_) events.push({end, Rank(a.stage + 1, a.microbatch)});
    } else if (a.kind != ActionKind::kWeightGrad) {
      backward_end_[At(a.stage, a.microbatch)] = end;
      if (a.stage > 0) events.push({end, Rank(a.stage - 1, a.microbatch)});
    }
  }
  return plan;
}

Plan ListSchedule(const Placement& placement, int ranks, int microbatches,
                  const ListPolicy& policy) {
  Playout play(placement, ranks, microbatches);
  Chooser chooser{play, policy, microbatches, {}, {}};
  chooser.tracks.resize(ranks);
  chooser.forwards_left.resize(ranks);
  for (size_t s = 0; s < placement.size(); ++s) {
    int r = static_cast<int>(placement[s].size());
    for (int k = 0; k < r; ++k) {
      chooser.tracks[placement[s][k]].push_back({static_cast<int>(s), r, k, k, k});
      chooser.forwards_left[placement[s][k]] += (microbatches - k + r - 1) / r;
    }
  }
  return play.Run([&](int rank, int now) { return chooser.Choose(rank, now); });
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
