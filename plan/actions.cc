#include "plan/actions.h"

#include <algorithm>

#include "plan/plan_text.h"

namespace pipewright {

int PeerOf(const Action& transfer) {
  if (transfer.peer >= 0) return transfer.peer;
  bool up = transfer.kind == ActionKind::kSendForward || transfer.kind == ActionKind::kRecvBackward;
  return transfer.stage + (up ? 1 : -1);
}

std::string PlaceText(int rank, size_t position, const Action& action) {
  return "rank " + std::to_string(rank) + ", action " + std::to_string(position) + ", " +
         ToText(action);
}

void CountPlan(Plan& plan, int written) {
  int stage = -1, microbatch = -1, steps = 0;
  bool backward = false;
  for (const auto& actions : plan.ranks) {
    std::vector<int> stepped;
    for (const Action& a : actions) {
      stage = std::max({stage, a.stage, a.overlap_stage, IsTransfer(a.kind) ? PeerOf(a) : -1});
      microbatch = std::max({microbatch, a.microbatch, a.overlap_microbatch});
      backward |= IsCompute(a.kind) && a.kind != ActionKind::kForward;
      if (a.kind == ActionKind::kStep) stepped.push_back(a.stage);
    }
    std::sort(stepped.begin(), stepped.end());
    for (size_t i = 0, run = 0; i < stepped.size(); ++i) {
      run = i && stepped[i] == stepped[i - 1] ? run + 1 : 1;
      steps = std::max(steps, static_cast<int>(run));
    }
  }
  plan.stages = stage + 1;
  if (steps == 0) steps = written;
  plan.steps = steps > 1 && (microbatch + 1) % steps == 0 ? steps : 1;
  plan.microbatches = (microbatch + 1) / plan.steps;
  plan.forward_only = !backward;
}

Plan ComputeOnly(const Plan& plan) {
  Plan out;
  out.stages = plan.stages;
  out.microbatches = plan.microbatches;
  out.steps = plan.steps;
  out.forward_only = plan.forward_only;
  out.recompute = plan.recompute;
  for (const auto& actions : plan.ranks) {
    auto& kept = out.ranks.emplace_back();
    for (const Action& a : actions)
      if (IsCompute(a.kind)) kept.push_back(a);
  }
  return out;
}

bool HasTransfers(const Plan& plan) {
  for (const auto& actions : plan.ranks)
    for (const Action& a : actions)
      if (IsTransfer(a.kind)) return true;
  return false;
}

bool HasSteps(const Plan& plan) {
  for (const auto& actions : plan.ranks)
    for (const Action& a : actions)
      if (a.kind == ActionKind::kStep) return true;
  return false;
}

std::vector<char> RecomputeOf(const Plan& plan) {
  std::vector<char> stages;
  if (!plan.recompute.empty()) stages.assign(plan.stages, 0);
  for (int s : plan.recompute)
    if (s < plan.stages) stages[s] = 1;
  return stages;
}

}  // namespace pipewright
