// Schedules with several stages per rank: interleaved 1F1B (Narayanan et al., 2104.04473, section
// 2.2), breadth-first (Lamy-Poirier, 2211.05953), and the interleaved zero bubble schedule of
// torch.distributed.pipelining (ScheduleInterleavedZeroBubble), after Qi et al., 2401.10241.
#include <algorithm>

#include "plan/schedules/generators.h"
#include "plan/schedules/list_schedule.h"

namespace pipewright {

namespace {

// Divides microbatches into rounds. In a round, each chunk runs all of them before the next chunk.
class Rounds {
 public:
  Rounds(int ranks, int chunks, std::vector<int> sizes)
      : ranks_(ranks), chunks_(chunks), first_(sizes[0]) {
    int begin = 0;
    for (int size : sizes) {
      for (int chunk = 0; chunk < chunks; ++chunk)
        for (int i = 0; i < size; ++i) steps_.push_back({chunk, begin + i});
      begin += size;
    }
    microbatches_ = begin;
  }

  // Returns the step-th compute of a kind.
  Action At(ActionKind kind, int rank, int step) const {
    auto [chunk, microbatch] = steps_[step];
    if (kind != ActionKind::kForward) chunk = chunks_ - 1 - chunk;
    return Compute(kind, chunk * ranks_ + rank, microbatch);
  }
  int Steps() const { return static_cast<int>(steps_.size()); }
  int ranks() const { return ranks_; }
  int microbatches() const { return microbatches_; }
  // Returns the number of a rank's forwards before its last chunk begins.
  int BeforeLastChunk() const { return (chunks_ - 1) * first_; }

 private:
  int ranks_, chunks_, first_, microbatches_ = 0;
  std::vector<std::pair<int, int>> steps_;  // chunk, microbatch
};

// Returns rounds of P; the last one has the remainder.
std::vector<int> FullRounds(int microbatches, int ranks) {
  return std::vector<int>(RoundUp(microbatches, ranks) / ranks, ranks);
}

// Returns rounds of P and more, as even as possible; fewer than P microbatches make one round.
std::vector<int> EvenRounds(int microbatches, int ranks) {
  int rounds = std::max(1, microbatches / ranks);
  std::vector<int> sizes(rounds, microbatches / rounds);
  for (int k = 0; k < microbatches % rounds; ++k) ++sizes[k];
  return sizes;
}

Plan InterleavedOrder(const Rounds& rounds) {
  Plan plan;
  plan.ranks.resize(rounds.ranks());
  int total = rounds.Steps();
  for (int r = 0; r < rounds.ranks(); ++r) {
    auto& actions = plan.ranks[r];
    actions.reserve(2 * static_cast<size_t>(total));
    int warmup = std::min(total, 2 * (rounds.ranks() - 1 - r) + rounds.BeforeLastChunk());
    for (int k = 0; k < warmup; ++k) actions.push_back(rounds.At(ActionKind::kForward, r, k));
    for (int k = 0; k < total; ++k) {
      if (warmup + k < total) actions.push_back(rounds.At(ActionKind::kForward, r, warmup + k));
      actions.push_back(rounds.At(ActionKind::kBackward, r, k));
    }
  }
  return plan;
}

// Returns the actions of a rank, with an idle cell (kStep) for each time step in which it waits.
std::vector<Action> Zb1pRank(const Rounds& rounds, int rank) {
  int total = rounds.Steps(), p = rounds.ranks();
  int warmup = std::min(total, rounds.BeforeLastChunk() + p - 1 - rank);
  std::vector<Action> actions(rank, Compute(ActionKind::kStep, -1, -1));
  for (int k = 0; k < warmup; ++k) actions.push_back(rounds.At(ActionKind::kForward, rank, k));
  if (warmup > 0) actions.resize(actions.size() + p - 1 - rank, Compute(ActionKind::kStep, -1, -1));
  int weights = 0;
  for (int k = 0; k < total; ++k) {
    if (warmup + k < total) actions.push_back(rounds.At(ActionKind::kForward, rank, warmup + k));
    actions.push_back(rounds.At(ActionKind::kInputGrad, rank, k));
    if (k >= rank) actions.push_back(rounds.At(ActionKind::kWeightGrad, rank, weights++));
  }
  while (weights < total) actions.push_back(rounds.At(ActionKind::kWeightGrad, rank, weights++));
  return actions;
}

// Runs one action per time step; a forward whose input has not arrived leaves its step idle.
Plan Zb1pOrder(const Rounds& rounds) {
  Plan plan;
  plan.ranks.resize(rounds.ranks());
  std::vector<std::vector<Action>> wanted;
  for (int r = 0; r < rounds.ranks(); ++r) wanted.push_back(Zb1pRank(rounds, r));
  std::vector<size_t> next(rounds.ranks());
  std::vector<int> idle(rounds.ranks());
  std::vector<char> seen(static_cast<size_t>(rounds.Steps()) * rounds.ranks());
  auto at = [&](int stage, int i) {
    return static_cast<size_t>(stage) * rounds.microbatches() + i;
  };
  for (size_t left = rounds.ranks(), steps = 0; left > 0; ++steps) {
    left = 0;
    std::vector<Action> done;
    for (int r = 0; r < rounds.ranks(); ++r) {
      if (next[r] == wanted[r].size()) continue;
      ++left;
      const Action& a = wanted[r][next[r]];
      bool wait =
          a.kind == ActionKind::kForward && a.stage > 0 && !seen[at(a.stage - 1, a.microbatch)];
      if (!wait) ++next[r];
      if (wait || a.kind == ActionKind::kStep) {
        ++idle[r];
        continue;
      }
      int position = static_cast<int>(plan.ranks[r].size());
      if (idle[r]) plan.layout.idle.push_back({r, position, idle[r]});
      idle[r] = 0;
      plan.ranks[r].push_back(a);
      if (a.kind == ActionKind::kForward) done.push_back(a);
    }
    for (const Action& a : done) seen[at(a.stage, a.microbatch)] = true;
    // The order deadlocks. It is returned unfinished, and the caller detects that.
    if (steps > 8 * seen.size() + 64) break;
  }
  std::stable_sort(plan.layout.idle.begin(), plan.layout.idle.end(),
                   [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return plan;
}

// For numbers that P does not divide, takes the order for the next multiple and removes the
// surplus, or takes larger rounds if they end earlier (`even` breaks ties).
Plan BestRounds(const ScheduleRequest& q, Plan (*order)(const Rounds&), bool even) {
  int chunks = RoundUp(q.stages, q.ranks) / q.ranks;
  auto trimmed = [&](std::vector<int> sizes) {
    Plan plan = order(Rounds(q.ranks, chunks, std::move(sizes)));
    Trim(plan, q.stages, q.microbatches);
    return plan;
  };
  Plan full = trimmed(FullRounds(q.microbatches, q.ranks));
  if (q.microbatches % q.ranks == 0) return full;
  Plan larger = trimmed(EvenRounds(q.microbatches, q.ranks));
  int64_t gain = UnitEnd(full, q) - UnitEnd(larger, q);
  return gain > 0 || (gain == 0 && even) ? larger : full;
}

// For placements other than the loop, simulates the rule.
Plan PlayedThrough(const ScheduleRequest& q, bool split) {
  ListPolicy policy;
  policy.split = split;
  policy.in_flight = PipelineDepths(q.placement);
  if (split) policy.weight_grads_held.assign(q.stages, q.ranks);
  return ListSchedule(q.placement, q.ranks, q.microbatches, policy);
}

}  // namespace

Plan Interleaved(const ScheduleRequest& q) {
  if (!IsLoop(q.placement, q.ranks)) return PlayedThrough(q, false);
  return BestRounds(q, InterleavedOrder, false);
}

// Runs each stage's forwards, then each stage's backwards from the last stage on.
static Plan StageByStage(const ScheduleRequest& q, bool descending) {
  Plan plan;
  plan.ranks.resize(q.ranks);
  auto add = [&](ActionKind kind, int s, int i) {
    plan.ranks[q.placement[s][i % q.placement[s].size()]].push_back(Compute(kind, s, i));
  };
  for (int s = 0; s < q.stages; ++s)
    for (int i = 0; i < q.microbatches; ++i) add(ActionKind::kForward, s, i);
  for (int s = q.stages; s-- > 0;)
    for (int i = 0; i < q.microbatches; ++i)
      add(ActionKind::kBackward, s, descending ? q.microbatches - 1 - i : i);
  return plan;
}

Plan BreadthFirst(const ScheduleRequest& q) { return StageByStage(q, false); }

// Follows PyTorch's ScheduleLoopedBFS: the backward of the last forward comes first.
Plan LoopedBreadthFirst(const ScheduleRequest& q) { return StageByStage(q, true); }

// PyTorch's rounds are the even ones; they complete if M >= P.
Plan InterleavedZeroBubble(const ScheduleRequest& q) {
  if (!IsLoop(q.placement, q.ranks)) return PlayedThrough(q, true);
  return BestRounds(q, Zb1pOrder, true);
}

}  // namespace pipewright
