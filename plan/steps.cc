#include "plan/steps.h"

#include <algorithm>

#include "plan/actions.h"

namespace pipewright {

StepLoop Synchronous(const Plan& schedule) {
  StepLoop loop;
  loop.body = ComputeOnly(schedule);
  loop.prologue.ranks.resize(schedule.ranks.size());
  loop.epilogue.ranks.resize(schedule.ranks.size());
  return loop;
}

StepLoop AsynchronousOneForwardOneBackward(int ranks, int microbatches) {
  StepLoop loop;
  for (Plan* part : {&loop.prologue, &loop.body, &loop.epilogue}) part->ranks.resize(ranks);
  loop.body.stages = ranks;
  loop.body.microbatches = microbatches;
  for (int r = 0; r < ranks; ++r) {
    auto add = [&](Plan& part, ActionKind kind, int i) {
      Action a;
      a.kind = kind, a.stage = r, a.microbatch = i;
      part.ranks[r].push_back(a);
    };
    int warmup = ranks - 1 - r;
    for (int i = 0; i < warmup; ++i) add(loop.prologue, ActionKind::kForward, i);
    for (int i = 0; i < microbatches; ++i) {
      add(loop.body, ActionKind::kForward, warmup + i);
      add(loop.body, ActionKind::kBackward, i);
    }
  }
  return loop;
}

Plan Unroll(const StepLoop& loop, int steps) {
  Plan plan;
  plan.stages = loop.body.stages;
  plan.microbatches = loop.body.microbatches;
  plan.steps = steps;
  plan.forward_only = loop.body.forward_only;
  plan.ranks.resize(loop.body.ranks.size());
  int total = steps * plan.microbatches;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    auto add = [&](const Plan& part, int offset) {
      for (Action a : part.ranks[r]) {
        a.microbatch += offset;
        if (a.overlap_microbatch >= 0) a.overlap_microbatch += offset;
        if (a.microbatch < total && a.overlap_microbatch < total) plan.ranks[r].push_back(a);
      }
    };
    add(loop.prologue, 0);
    for (int k = 0; k < steps; ++k) add(loop.body, k * plan.microbatches);
    add(loop.epilogue, total);
  }
  return plan;
}

void SetVersions(Plan& plan, int delay) {
  int total = plan.steps * plan.microbatches;
  for (auto& actions : plan.ranks) {
    std::vector<int> steps(plan.stages);
    std::vector<std::vector<int>> version(plan.stages);  // of each microbatch's forward
    for (Action& a : actions) {
      if (a.kind == ActionKind::kStep) ++steps[a.stage];
      if (!IsCompute(a.kind)) continue;
      auto& of_stage = version[a.stage];
      if (of_stage.empty()) of_stage.resize(total, -1);
      if (a.kind == ActionKind::kForward)
        of_stage[a.microbatch] =
            delay < 0 ? steps[a.stage] : std::max(0, a.microbatch / plan.microbatches - delay);
      a.version = of_stage[a.microbatch];
    }
  }
}

}  // namespace pipewright
