#include "plan/step_rules.h"

#include <algorithm>

#include "plan/actions.h"
#include "plan/error.h"
#include "plan/reduce_order.h"

namespace pipewright {

namespace {

// What has happened so far to one stage on one rank.
struct Progress {
  int reduces = 0, steps = 0;
  int gradients = 0;  // microbatches whose weight gradient is complete
  bool offloaded = false, loaded = false;
};

struct StepRules {
  const Plan& plan;
  std::vector<char> reducing;                // [stage] whether its gradients are summed with others
  std::vector<std::pair<int, int>> replica;  // [stage] this rank's number among its replicas, r
  std::vector<Progress> stages;              // of the rank at hand
  int rank = 0;
  size_t position = 0;

  [[noreturn]] void Fail(const Action& a, const std::string& what) const {
    throw Error(Place(rank, position, a), what);
  }

  // Microbatches of the first `steps` steps that the stage runs on this rank.
  int Own(int stage, int steps) const {
    auto [k, r] = replica[stage];
    return (steps * plan.microbatches - k + r - 1) / r;
  }

  void Visit(const Action& a, bool stepping) {
    Progress& s = stages[a.stage];
    if (a.kind == ActionKind::kReduceGrad) {
      if (s.reduces == plan.steps) Fail(a, "rule \"once\": the stage has one already");
      if (s.gradients < Own(a.stage, s.reduces + 1))
        Fail(a, "rule \"order\": gradients of the stage are computed after it");
      ++s.reduces;
    }
    if (a.kind == ActionKind::kStep) {
      if (s.steps == plan.steps) Fail(a, "rule \"once\": the stage has one already");
      if (s.gradients < Own(a.stage, s.steps + 1))
        Fail(a, "rule \"order\": gradients of the stage are computed after it");
      if (reducing[a.stage] && s.reduces <= s.steps)
        Fail(a, "rule \"step\": the stage's REDUCE_GRAD does not come before it");
      ++s.steps;
    }
    if (a.kind == ActionKind::kLoad || a.kind == ActionKind::kEvict) {
      bool load = a.kind == ActionKind::kLoad;
      if (s.loaded == load)
        Fail(a, std::string("rule \"load\": the stage is ") + (load ? "loaded" : "not loaded"));
      s.loaded = load;
    }
    if (!IsCompute(a.kind)) return;
    if (HasForward(a)) {
      CheckLoaded(a, a.stage);
      if (stepping && a.version < 0 && s.steps != a.microbatch / plan.microbatches)
        Fail(a, "rule \"step\": it runs after " + std::to_string(s.steps) +
                    " steps of its stage and belongs to step " +
                    std::to_string(a.microbatch / plan.microbatches));
    }
    if (HasBackward(a)) CheckLoaded(a, BackwardStage(a));
    if (a.kind == ActionKind::kWeightGrad) CheckLoaded(a, a.stage);
    if (a.kind == ActionKind::kWeightGrad || a.kind == ActionKind::kBackward ||
        a.kind == ActionKind::kOverlap)
      ++stages[BackwardStage(a)].gradients;
  }

  void CheckLoaded(const Action& a, int stage) const {
    if (stages[stage].offloaded && !stages[stage].loaded)
      Fail(a,
           "rule \"load\": the weights of stage " + std::to_string(stage) + " are not loaded here");
  }
};

}  // namespace

void CheckSteps(const Plan& plan, const StageGraph& graph) {
  bool stepping = false;
  for (const auto& actions : plan.ranks)
    for (const Action& a : actions) stepping |= a.kind == ActionKind::kStep;
  size_t stages = graph.ranks_of.size();
  StepRules rules{plan, std::vector<char>(stages), std::vector<std::pair<int, int>>(stages, {0, 1}),
                  std::vector<Progress>(stages)};
  for (const ReduceExchange& x : ReduceExchanges(graph))
    for (int s : x.stages) rules.reducing[s] = true;
  std::vector<std::vector<std::pair<int, int>>> own(plan.ranks.size());  // stage, replica
  for (int s = 0; s < graph.stages; ++s)
    for (size_t k = 0; k < graph.ranks_of[s].size(); ++k)
      own[graph.ranks_of[s][k]].emplace_back(s, static_cast<int>(k));
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    rules.rank = static_cast<int>(r);
    for (auto [s, k] : own[r]) {
      rules.stages[s] = {};
      rules.replica[s] = {k, static_cast<int>(graph.ranks_of[s].size())};
    }
    for (const Action& a : plan.ranks[r])
      if (a.kind == ActionKind::kLoad) rules.stages[a.stage].offloaded = true;
    for (rules.position = 0; rules.position < plan.ranks[r].size(); ++rules.position)
      rules.Visit(plan.ranks[r][rules.position], stepping);
    for (auto [s, k] : own[r]) {
      std::string where = "rank " + std::to_string(r) + ", stage " + std::to_string(s);
      if (stepping && rules.stages[s].steps != plan.steps)
        throw Error(where, "rule \"step\": it has " + std::to_string(rules.stages[s].steps) +
                               " STEP for " + std::to_string(plan.steps) + " steps");
      if (stepping && rules.reducing[s] && rules.stages[s].reduces != plan.steps)
        throw Error(where, "rule \"step\": REDUCE_GRAD is missing");
    }
  }
}

}  // namespace pipewright
