#include "plan/halves.h"

#include "plan/actions.h"

namespace pipewright {

Plan InHalves(const Plan& plan) {
  Plan halves = plan;
  halves.layout = {};
  for (std::vector<Action>& actions : halves.ranks) {
    std::vector<Action> out, waiting;  // `waiting`: W, until after the sends
    for (const Action& a : actions) {
      if (!IsSend(a.kind)) {
        out.insert(out.end(), waiting.begin(), waiting.end());
        waiting.clear();
      }
      if (!HasBackward(a) || a.kind == ActionKind::kInputGrad) {
        out.push_back(a);
        continue;
      }
      Action half = a;
      half.stage = BackwardStage(a), half.microbatch = BackwardMicrobatch(a);
      half.overlap_stage = half.overlap_microbatch = -1;
      if (HasForward(a)) {
        Action forward = a;
        forward.kind = ActionKind::kForward;
        forward.overlap_stage = forward.overlap_microbatch = -1;
        out.push_back(forward);
      }
      half.kind = ActionKind::kInputGrad;
      out.push_back(half);
      half.kind = ActionKind::kWeightGrad;
      waiting.push_back(half);
    }
    out.insert(out.end(), waiting.begin(), waiting.end());
    actions = std::move(out);
  }
  return halves;
}

Plan InWhole(const Plan& plan) {
  Plan whole = plan;
  whole.layout = {};
  for (std::vector<Action>& actions : whole.ranks) {
    std::erase_if(actions, [](const Action& a) { return a.kind == ActionKind::kWeightGrad; });
    for (Action& a : actions)
      if (a.kind == ActionKind::kInputGrad) a.kind = ActionKind::kBackward;
  }
  return whole;
}

}  // namespace pipewright
