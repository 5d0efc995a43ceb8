#include "plan/tune/stage_order.h"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/actions.h"

namespace pipewright {

std::optional<StageOrder> OrderOfStages(const Plan& plan) {
  std::vector<StageOrder> stages(static_cast<size_t>(plan.stages));
  for (const std::vector<Action>& actions : plan.ranks) {
    std::map<int, ReplicaOrder> own;  // by stage
    for (const Action& action : actions) {
      if (HasForward(action)) own[action.stage].forwards.push_back(action.microbatch);
      if (action.kind == ActionKind::kBackward || action.kind == ActionKind::kWeightGrad ||
          action.kind == ActionKind::kOverlap)
        own[BackwardStage(action)].additions.push_back(BackwardMicrobatch(action));
    }
    for (auto& [stage, order] : own) stages[static_cast<size_t>(stage)].push_back(std::move(order));
  }
  for (StageOrder& stage : stages) {
    // Microbatch i is on replica i mod r.
    std::sort(stage.begin(), stage.end(), [](const ReplicaOrder& a, const ReplicaOrder& b) {
      return *std::min_element(a.forwards.begin(), a.forwards.end()) <
             *std::min_element(b.forwards.begin(), b.forwards.end());
    });
    if (stage != stages[0]) return std::nullopt;
  }
  return stages.empty() ? std::nullopt : std::optional(stages[0]);
}

}  // namespace pipewright
