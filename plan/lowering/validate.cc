#include "plan/lowering/validate.h"

#include <algorithm>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/compute_index.h"
#include "plan/lowering/rendezvous.h"
#include "plan/lowering/step_legality.h"
#include "plan/lowering/transfer_index.h"
#include "plan/simulate/compute_times.h"
#include "plan/simulate/memory.h"
#include "plan/stage_graph.h"

namespace pipewright {

static void CheckRange(const Plan& plan, const StageGraph& graph) {
  int total = plan.steps * plan.microbatches;
  for (int s : plan.recompute)
    if (s >= plan.stages)
      throw Error("#recompute", "rule \"range\": there is no stage " + std::to_string(s));
  if (!plan.shared.empty() && plan.shared != graph.shared)
    throw Error("#shared", "rule \"step\": these are not the stages that share weights",
                "make a new plan for this package");
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (size_t p = 0; p < plan.ranks[r].size(); ++p) {
      const Action& a = plan.ranks[r][p];
      bool bad_peer = IsTransfer(a.kind) && (PeerOf(a) < 0 || PeerOf(a) >= plan.stages);
      bool counted = IsCompute(a.kind) || IsTransfer(a.kind);
      if (a.stage < 0 || a.stage >= plan.stages || bad_peer || a.microbatch >= total ||
          (counted && a.microbatch < 0))
        throw Error(PlaceText(static_cast<int>(r), p, a),
                    "rule \"range\": the plan has " + std::to_string(plan.stages) + " stages and " +
                        std::to_string(total) + " microbatches");
    }
}

// Counts the most that is held at once; a buffer is held from its RECV to the compute that uses it.
static RankPeaks PeaksOf(const Plan& plan, const StageGraph& graph, const EdgeIndex& edges,
                         const ComputeIndex& computes, bool transfers, int rank) {
  RankPeaks peaks, now;
  const auto& actions = plan.ranks[rank];
  auto bytes = [&](int edge, bool backward) {
    return backward ? graph.edges[edge].backward_bytes : graph.edges[edge].forward_bytes;
  };
  auto use = [&](const std::vector<int>& own, int microbatch, bool backward) {
    for (int e : own) {
      int peer = backward ? graph.edges[e].to : graph.edges[e].from;
      if ((backward && !graph.edges[e].gradient) || RankOf(graph, peer, microbatch) == rank)
        continue;
      --now.buffers;
      now.buffer_bytes -= bytes(e, backward);
    }
  };
  const bool forward_only = computes.backward.empty();
  RankMemory activations(0, forward_only), kept(0, forward_only), loaded(0, forward_only);
  for (const Action& a : actions) {
    activations.Do(a, [](int) { return StageMemory{1, 1, 0}; });
    kept.Do(a, [](int) { return StageMemory{0, 0, 1}; });
    loaded.Load(a, [](int) { return 1.0; });
    if (IsRecv(a.kind)) {
      ++now.buffers;
      now.buffer_bytes += bytes(EdgeOf(graph, edges, a), a.kind == ActionKind::kRecvBackward);
    }
    peaks.buffers = std::max(peaks.buffers, now.buffers);
    peaks.buffer_bytes = std::max(peaks.buffer_bytes, now.buffer_bytes);
    if (HasForward(a) && transfers) use(edges.in[a.stage], a.microbatch, false);
    if (HasBackward(a) && transfers)
      use(edges.out[BackwardStage(a)], BackwardMicrobatch(a), true);
  }
  peaks.activations = static_cast<int>(activations.peak());
  peaks.kept_for_weights = static_cast<int>(kept.peak());
  peaks.loaded = static_cast<int>(loaded.peak());
  return peaks;
}

PlanReport Validate(const Plan& plan, const StageGraph& stage_graph) {
  CheckGraph(stage_graph);
  StageGraph graph = stage_graph;
  graph.microbatches = plan.microbatches;
  CheckRange(plan, graph);
  EdgeIndex edges = IndexEdges(graph);
  ComputeIndex computes = IndexCompute(plan, graph);
  TransferIndex transfers = IndexTransfers(plan, graph, edges, computes);
  CheckSteps(plan, graph);
  CheckRendezvous(plan, graph, edges, transfers);
  PlanReport report;
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    report.ranks.push_back(PeaksOf(plan, graph, edges, computes, true, static_cast<int>(r)));
  return report;
}

PlanReport Validate(const Plan& plan) { return Validate(plan, GraphOf(plan)); }

PlanReport ValidateSchedule(const Plan& schedule, const StageGraph& stage_graph) {
  CheckGraph(stage_graph);
  StageGraph graph = stage_graph;
  graph.microbatches = schedule.microbatches;
  Plan plan = ComputeOnly(schedule);
  CheckRange(plan, graph);
  ComputeIndex computes = IndexCompute(plan, graph);
  UnitEnds(plan, graph);
  CheckScheduleSteps(plan, graph);
  EdgeIndex edges = IndexEdges(graph);
  PlanReport report;
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    report.ranks.push_back(PeaksOf(plan, graph, edges, computes, false, static_cast<int>(r)));
  return report;
}

}  // namespace pipewright
