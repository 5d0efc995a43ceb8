#include "plan/simulate/rank_account.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "plan/actions.h"
#include "plan/simulate/memory.h"

namespace pipewright {

namespace {

// Counts the messages of a rank between their RECV and the compute that uses them. From then on
// they count as part of that compute.
class Received {
 public:
  Received(const Costs& costs, int rank) : costs_(costs), rank_(rank) {}

  void Take(const Action& recv, RankMemory& memory) {
    const bool back = recv.kind == ActionKind::kRecvBackward;
    const int from = back ? recv.stage : PeerOf(recv), to = back ? PeerOf(recv) : recv.stage;
    const EdgeCosts edge = EdgeCostsOf(costs_, from, to, rank_);
    const double bytes = back ? edge.back : edge.bytes;
    bytes_[{recv.stage, recv.microbatch, back}] += bytes;
    memory.Hold(bytes);
  }
  void Use(const Action& a, RankMemory& memory) {
    if (HasForward(a)) Give({a.stage, a.microbatch, false}, memory);
    if (HasBackward(a)) Give({BackwardStage(a), BackwardMicrobatch(a), true}, memory);
  }

 private:
  const Costs& costs_;
  const int rank_;
  std::map<std::tuple<int, int, bool>, double> bytes_;  // by stage, microbatch and direction

  void Give(const std::tuple<int, int, bool>& key, RankMemory& memory) {
    auto found = bytes_.find(key);
    if (found == bytes_.end()) return;
    memory.Hold(-found->second);
    bytes_.erase(found);
  }
};

}  // namespace

RankAccount BytesOfRank(const Plan& plan, int rank, const Costs& costs,
                        const std::vector<char>& recompute) {
  RankAccount out;
  std::vector<char> held(plan.stages, 0), loaded(plan.stages, 0), summed(plan.stages, 0);
  for (const Action& a : plan.ranks[rank]) {
    if (a.stage < 0) continue;
    if (a.kind == ActionKind::kLoad) loaded[a.stage] = 1;
    if (IsCompute(a.kind) || a.kind == ActionKind::kStep || a.kind == ActionKind::kReduceGrad)
      held[a.stage] = 1;  // a replica may have no microbatch
  }
  auto weights = [&](int stage) { return CostsOf(costs, stage, rank).weights; };
  auto memory = [&](int stage) {
    return StageMemoryOf(CostsOf(costs, stage, rank), !recompute.empty() && recompute[stage]);
  };
  for (int s = 0; s < plan.stages; ++s)  // loaded stages are not in memory from the start
    if (held[s] && !loaded[s]) out.start += weights(s);
  RankMemory bytes(out.start, plan.forward_only);
  Received received(costs, rank);
  for (const Action& a : plan.ranks[rank]) {
    bytes.StartPeak();
    bytes.Load(a, weights);
    if (IsRecv(a.kind)) received.Take(a, bytes);
    if (IsCompute(a.kind)) received.Use(a, bytes);
    const int stage = IsCompute(a.kind) ? BackwardStage(a) : a.stage;
    bytes.Do(a, memory, !summed[stage]);
    if (a.kind == ActionKind::kStep) {
      bytes.Reach(CostsOf(costs, stage, rank).peak.step);
      if (summed[stage]) bytes.Hold(-CostsOf(costs, stage, rank).gradients);
      summed[stage] = 0;
    } else if ((HasBackward(a) && a.kind != ActionKind::kInputGrad) ||
               a.kind == ActionKind::kWeightGrad) {
      if (!summed[stage]) bytes.Hold(CostsOf(costs, stage, rank).gradients);
      summed[stage] = 1;
    }
    out.actions.push_back({bytes.peak(), bytes.bytes()});
  }
  return out;
}

double PeakOfRank(const Plan& plan, int rank, const Costs& costs,
                  const std::vector<char>& recompute) {
  const RankAccount account = BytesOfRank(plan, rank, costs, recompute);
  double peak = account.start;
  for (const HeldBytes& held : account.actions) peak = std::max(peak, held.most);
  return peak;
}

std::vector<MemoryAt> MemoryOverTime(const RankAccount& account,
                                     const std::vector<TimedAction>& events) {
  std::vector<MemoryAt> changes = {{0, account.start}};
  size_t position = 0;
  auto act = [&](double start, double end) {
    changes.push_back({start, account.actions[position].most});
    changes.push_back({end, account.actions[position++].after});
  };
  double time = 0;
  int step = 0;
  for (const TimedAction& e : events) {
    if (std::exchange(step, e.step) != e.step) {
      while (position < account.actions.size()) act(time, time);
      position = 0;
    }
    while (position < static_cast<size_t>(e.action)) act(time, time);
    act(e.start, e.end);
    time = e.end;
  }
  while (position < account.actions.size()) act(time, time);
  return changes;
}

}  // namespace pipewright
