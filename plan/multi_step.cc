#include "plan/multi_step.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/receive_buffers.h"

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

static int StepsIn(const Plan& plan) {
  int most = 0;
  for (const auto& actions : plan.ranks) {
    std::map<int, int> steps;
    for (const Action& a : actions)
      if (a.kind == ActionKind::kStep) most = std::max(most, ++steps[a.stage]);
  }
  return most;
}

int StepsAround(const StepLoop& loop) { return StepsIn(loop.prologue) + StepsIn(loop.epilogue); }

// Returns `a` moved by this many steps (below 0: to an earlier step).
static Action Shifted(Action a, int steps, int microbatches) {
  if (a.microbatch >= 0) a.microbatch += steps * microbatches;
  if (a.overlap_microbatch >= 0) a.overlap_microbatch += steps * microbatches;
  if (a.version >= 0) a.version += steps;
  return a;
}

Plan Unroll(const StepLoop& loop, int steps) {
  int bodies = steps - StepsAround(loop);
  if (bodies < 0)
    throw Error("--steps", "prologue and epilogue alone make " + std::to_string(StepsAround(loop)) +
                               " steps, not " + std::to_string(steps));
  Plan plan;
  plan.stages = loop.body.stages;
  plan.microbatches = loop.body.microbatches;
  plan.steps = steps;
  plan.forward_only = loop.body.forward_only;
  plan.shared = loop.body.shared, plan.recompute = loop.body.recompute;
  plan.ranks.resize(loop.body.ranks.size());
  int total = steps * plan.microbatches;
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    auto add = [&](const Plan& part, int later) {
      for (const Action& action : part.ranks[r]) {
        Action a = Shifted(action, later, plan.microbatches);
        if (a.microbatch < total && a.overlap_microbatch < total) plan.ranks[r].push_back(a);
      }
    };
    add(loop.prologue, 0);
    for (int k = 0; k < bodies; ++k) add(loop.body, k);
    add(loop.epilogue, bodies - 1);
  }
  if (HasTransfers(plan)) NumberSlots(plan);
  return plan;
}

namespace {

// Divides the actions of one rank after the last STEP of every step; the rest goes to the last
// step.
std::vector<std::vector<Action>> CutSteps(const std::vector<Action>& actions, int steps) {
  std::map<int, int> stages;
  for (const Action& a : actions)
    if (a.kind == ActionKind::kStep) stages[a.stage] = 0;
  std::vector<std::vector<Action>> cut(steps);
  size_t step = 0, stepped = 0;
  for (Action a : actions) {
    a.slot = -1;
    cut[std::min(step, cut.size() - 1)].push_back(a);
    if (a.kind == ActionKind::kStep && ++stepped == stages.size()) ++step, stepped = 0;
  }
  return cut;
}

}  // namespace

StepLoop Fold(const Plan& plan) {
  std::vector<std::vector<std::vector<Action>>> cut;  // [rank][step]
  for (const auto& actions : plan.ranks) cut.push_back(CutSteps(actions, plan.steps));
  // Returns true if step k + 1 repeats step k on all ranks.
  auto repeats = [&](int k) {
    for (const auto& steps : cut) {
      if (steps[k].size() != steps[k + 1].size()) return false;
      for (size_t i = 0; i < steps[k].size(); ++i)
        if (Shifted(steps[k][i], 1, plan.microbatches) != steps[k + 1][i]) return false;
    }
    return true;
  };
  int first = 0;
  while (first + 1 < plan.steps && !repeats(first)) ++first;
  if (first + 1 >= plan.steps)
    throw Error("plan",
                "none of its " + std::to_string(plan.steps) + " steps repeats the one before");
  int last = first + 1;
  while (last + 1 < plan.steps && repeats(last)) ++last;
  StepLoop loop;
  for (Plan* part : {&loop.prologue, &loop.body, &loop.epilogue}) {
    part->ranks.resize(plan.ranks.size());
    part->stages = plan.stages, part->microbatches = plan.microbatches;
    part->forward_only = plan.forward_only;
    part->shared = plan.shared, part->recompute = plan.recompute;
  }
  for (size_t r = 0; r < cut.size(); ++r)
    for (int k = 0; k < plan.steps; ++k) {
      if (k > first && k <= last) continue;
      Plan& part = k < first ? loop.prologue : k == first ? loop.body : loop.epilogue;
      for (const Action& a : cut[r][k])
        part.ranks[r].push_back(k > last ? Shifted(a, first - last, plan.microbatches) : a);
    }
  return loop;
}

void SetVersions(Plan& plan, int delay) {
  int total = plan.steps * plan.microbatches;
  for (auto& actions : plan.ranks) {
    std::vector<int> steps(plan.stages);
    std::vector<std::vector<int>> version(plan.stages);  // [stage][microbatch] of the forward
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
