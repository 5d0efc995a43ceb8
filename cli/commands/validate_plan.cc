#include "cli/commands/validate_plan.h"

#include <algorithm>
#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "plan/actions.h"
#include "plan/loop_text.h"
#include "plan/lowering/validate.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/measure.h"
#include "plan/stage_graph.h"

namespace pipewright {

void PrintNotes(const Plan& plan) {
  for (const std::string& note : plan.notes) std::cerr << note << "\n";
}

std::string Numbers(const Plan& plan) {
  std::string out = Counted(static_cast<int64_t>(plan.ranks.size()), "rank") + ", " +
                    Counted(plan.stages, "stage") + ", " + Counted(plan.microbatches, "microbatch");
  if (plan.steps > 1) out += ", " + Counted(plan.steps, "step");
  return out + (plan.forward_only ? ", forward only" : "");
}

// Prints the peak of each rank, one per line. `held` has the bytes of activations and weights; it
// may be empty.
static void PrintPeaks(const PlanReport& report, const std::vector<RankFigures>& held) {
  bool loads = std::any_of(report.ranks.begin(), report.ranks.end(),
                           [](const RankPeaks& peaks) { return peaks.loaded > 0; });
  std::printf("%5s %12s %12s %8s%s%s\n", "rank", "activations", "kept for W", "buffers",
              loads ? "   loaded" : "", held.empty() ? "" : " buffer bytes        bytes");
  for (size_t r = 0; r < report.ranks.size(); ++r) {
    const RankPeaks& peaks = report.ranks[r];
    std::printf("%5zu %12d %12d %8d", r, peaks.activations, peaks.kept_for_weights, peaks.buffers);
    if (loads) std::printf(" %8d", peaks.loaded);
    if (!held.empty())
      std::printf(" %12lld %12.10g", static_cast<long long>(peaks.buffer_bytes),
                  held[r].peak_bytes);
    std::printf("\n");
  }
}

void ValidatePlan(const ValidateRequest& request) {
  Plan plan = ReadPlanOrLoop(ReadFile(request.file), request.file, request.steps);
  PrintNotes(plan);
  bool schedule = request.compute_only || (plan.ranks.size() > 1 && !HasTransfers(plan));
  if (schedule && !request.compute_only)
    std::cerr << request.file << ": has no transfers, so it is checked as a schedule\n";
  StageGraph graph;
  Costs costs;
  if (!request.costs.empty()) {
    costs = ReadCosts(request.costs);
    CheckStages(costs, plan.stages);
  }
  PlanReport report;
  try {
    graph = GraphOf(plan);
    for (StageEdge& edge : graph.edges) {
      if (request.costs.empty()) break;
      const EdgeCosts bytes =
          EdgeCostsOf(costs, edge.from, edge.to, graph.ranks_of[edge.from][0]);
      edge.forward_bytes = static_cast<int64_t>(bytes.bytes);
      edge.backward_bytes = static_cast<int64_t>(bytes.back);
    }
    report = schedule ? ValidateSchedule(plan, graph) : Validate(plan, graph);
  } catch (const Error& e) {
    throw Error(request.file, e.what());
  }
  std::vector<RankFigures> held;
  if (!request.costs.empty() || request.memory >= 0) {
    if (request.costs.empty()) costs = UnitCosts();
    held = Measure(plan, costs, Simulate(plan, costs)).ranks;
  }
  for (size_t r = 0; r < held.size() && request.memory >= 0; ++r)
    if (held[r].peak_bytes > request.memory * (1 + 1e-12)) {
      const std::vector<Action>& actions = plan.ranks[r];
      std::string where = actions.empty() ? "rank " + std::to_string(r)
                                          : PlaceText(static_cast<int>(r), held[r].peak_position,
                                                      actions[held[r].peak_position]);
      throw Error(request.file + ": " + where, "rule \"memory\": the rank holds " +
                                                   Plain(held[r].peak_bytes) + ", more than " +
                                                   Plain(request.memory));
    }
  if (request.costs.empty()) held.clear();
  std::cout << request.file << ": valid: " << Numbers(plan) << "\n";
  PrintPeaks(report, held);
}

}  // namespace pipewright
