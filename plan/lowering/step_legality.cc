#include "plan/lowering/step_legality.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "plan/actions.h"
#include "plan/lowering/reduce_order.h"

namespace pipewright {

namespace {

// The history of one stage on one rank.
struct Progress {
  int reduces = 0, steps = 0;
  bool offloaded = false, loaded = false;
  bool backward = false;  // a backward other than W was the last to use the loaded weights
  bool last = false;      // a backward was the last compute since then
};

struct StepRules {
  const Plan& plan;
  std::vector<char> reducing;    // [stage] whether its gradients are summed with others
  std::vector<std::vector<int>> sums;  // stages that share weights: their sum is ready at the last
  std::vector<char> here;        // [stage] whether the rank at hand runs it
  std::vector<Progress> stages;  // progress of each stage on this rank
  std::map<std::pair<int, int>, int> forward_version;  // of the forwards that name one
  bool backward = false;                               // whether any rank runs one
  int rank = 0;
  size_t position = 0;

  [[noreturn]] void Fail(const Action& a, const std::string& what) const {
    throw Error(PlaceText(rank, position, a), what);
  }

  void Visit(const Action& a, bool stepping) {
    Progress& s = stages[a.stage];
    bool of_stage = a.kind == ActionKind::kReduceGrad || a.kind == ActionKind::kStep ||
                    a.kind == ActionKind::kLoad || a.kind == ActionKind::kEvict;
    if (of_stage && !here[a.stage])
      Fail(a, "rule \"rank\": this rank does not run stage " + std::to_string(a.stage));
    if (!backward && (a.kind == ActionKind::kReduceGrad || a.kind == ActionKind::kStep))
      Fail(a, "rule \"once\": no rank runs a backward, whose gradients it uses");
    if (a.kind == ActionKind::kReduceGrad) {
      if (s.reduces == plan.steps) Fail(a, "rule \"once\": the stage has one already");
      ++s.reduces;
    }
    if (a.kind == ActionKind::kStep) {
      if (s.steps == plan.steps) Fail(a, "rule \"once\": the stage has one already");
      if (reducing[a.stage] && s.reduces <= s.steps)
        Fail(a, "rule \"step\": the stage's REDUCE_GRAD does not come before it");
      for (const std::vector<int>& sum : sums)
        for (int other : sum)
          if (here[other] && stages[other].reduces <= s.steps &&
              std::count(sum.begin(), sum.end(), a.stage))
            Fail(a, "rule \"step\": REDUCE_GRAD of stage " + std::to_string(other) +
                        ", which shares a weight, does not come before it");
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
      if (a.version >= 0) {
        if (a.version > s.steps)
          Fail(a, "rule \"version\": the stage has made " + std::to_string(s.steps) +
                      " steps, version " + std::to_string(a.version) + " does not exist yet");
        forward_version[{a.stage, a.microbatch}] = a.version;
      } else if (stepping && s.steps != a.microbatch / plan.microbatches)
        Fail(a, "rule \"step\": it runs after " + std::to_string(s.steps) +
                    " steps of its stage and belongs to step " +
                    std::to_string(a.microbatch / plan.microbatches));
    }
    if (HasBackward(a) && stages[BackwardStage(a)].backward) CheckLoaded(a, BackwardStage(a));
    if (a.kind != ActionKind::kForward) CheckVersion(a);
    if (a.kind == ActionKind::kWeightGrad || a.kind == ActionKind::kBackward ||
        a.kind == ActionKind::kOverlap)
      CheckGradient(a);
  }

  // No gradient may come after its step's sum or step.
  void CheckGradient(const Action& a) const {
    const Progress& s = stages[BackwardStage(a)];
    int step = BackwardMicrobatch(a) / plan.microbatches;
    if (s.reduces > step || s.steps > step)
      Fail(a, "rule \"order\": it comes after the " +
                  std::string(s.reduces > step ? "REDUCE_GRAD" : "STEP") +
                  " that uses its gradient");
  }

  // A backward uses the weights of its forward.
  void CheckVersion(const Action& a) const {
    auto at = forward_version.find({BackwardStage(a), BackwardMicrobatch(a)});
    int version = at == forward_version.end() ? -1 : at->second;
    if (a.kind != ActionKind::kOverlap && a.version != version)
      Fail(a, "rule \"version\": its forward used version " + std::to_string(version));
  }

  void CheckLoaded(const Action& a, int stage) const {
    if (stages[stage].offloaded && !stages[stage].loaded)
      Fail(a,
           "rule \"load\": the weights of stage " + std::to_string(stage) + " are not loaded here");
  }

  // Looks at a rank's loads before its actions are visited. If nothing in or before a stage is
  // trained, its backwards do not need its weights: these are then evicted after a forward, and a
  // backward that has them has them by chance. W does not need them if I computes what W adds up.
  void FindLoads(const std::vector<Action>& actions) {
    for (const Action& a : actions) {
      Progress& s = stages[BackwardStage(a)];
      if (a.kind == ActionKind::kLoad) s.offloaded = true;
      if (a.kind == ActionKind::kLoad || a.kind == ActionKind::kEvict) {
        s.backward |= s.loaded && s.last;
        s.loaded = a.kind == ActionKind::kLoad;
        s.last = false;
      }
      if (HasForward(a)) stages[a.stage].last = false;
      if (HasBackward(a)) s.last = true;
    }
    for (Progress& s : stages) {
      s.backward |= s.loaded && s.last;
      s.loaded = false;
    }
  }
};

}  // namespace

static StepRules RulesOf(const Plan& plan, const StageGraph& graph) {
  size_t stages = graph.ranks_of.size();
  StepRules rules{
      plan, std::vector<char>(stages), {}, std::vector<char>(stages), std::vector<Progress>(stages),
      {}};
  for (const auto& actions : plan.ranks)
    for (const Action& a : actions) rules.backward |= HasBackward(a);
  for (const ReduceExchange& x : ReduceExchanges(graph)) {
    for (int s : x.stages) rules.reducing[s] = true;
    if (x.stages.size() > 1) rules.sums.push_back(x.stages);
  }
  return rules;
}

// Returns [rank] -> its stages.
static std::vector<std::vector<int>> StagesOfRanks(const Plan& plan, const StageGraph& graph) {
  std::vector<std::vector<int>> own(plan.ranks.size());
  for (int s = 0; s < graph.stages; ++s)
    for (int r : graph.ranks_of[s]) own[r].push_back(s);
  return own;
}

void CheckSteps(const Plan& plan, const StageGraph& graph) {
  bool stepping = false;
  for (const auto& actions : plan.ranks)
    for (const Action& a : actions) stepping |= a.kind == ActionKind::kStep;
  StepRules rules = RulesOf(plan, graph);
  std::vector<std::vector<int>> own = StagesOfRanks(plan, graph);
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    rules.rank = static_cast<int>(r);
    for (int s : own[r]) rules.stages[s] = {}, rules.here[s] = true;
    rules.FindLoads(plan.ranks[r]);
    for (rules.position = 0; rules.position < plan.ranks[r].size(); ++rules.position)
      rules.Visit(plan.ranks[r][rules.position], stepping);
    for (int s : own[r]) {
      rules.here[s] = false;
      if (stepping && rules.stages[s].steps != plan.steps)
        throw Error("rank " + std::to_string(r) + ", end of its " +
                        std::to_string(plan.ranks[r].size()) + " actions, " + std::to_string(s) +
                        "STEP",
                    "rule \"step\": it has " + std::to_string(rules.stages[s].steps) +
                        " STEP for " + Counted(plan.steps, "step"));
    }
  }
}

void CheckScheduleSteps(const Plan& schedule, const StageGraph& graph) {
  StepRules rules = RulesOf(schedule, graph);
  std::vector<std::vector<int>> own = StagesOfRanks(schedule, graph);
  for (size_t r = 0; r < schedule.ranks.size(); ++r) {
    rules.rank = static_cast<int>(r);
    for (int s : own[r]) rules.stages[s] = {};
    const std::vector<int> ends =
        rules.backward ? StepEnds(schedule, rules.rank) : std::vector<int>();
    size_t ended = 0;
    for (rules.position = 0; rules.position < schedule.ranks[r].size(); ++rules.position) {
      for (; ended < ends.size() && ends[ended] <= static_cast<int>(rules.position); ++ended)
        for (int s : own[r]) ++rules.stages[s].steps, ++rules.stages[s].reduces;
      rules.Visit(schedule.ranks[r][rules.position], rules.backward);
    }
  }
}

std::vector<int> StepEnds(const Plan& schedule, int rank) {
  std::vector<int> ends(schedule.steps, 0);
  const auto& computes = schedule.ranks[rank];
  for (size_t k = 0; k < computes.size(); ++k) {
    const Action& a = computes[k];
    if (HasBackward(a) || a.kind == ActionKind::kWeightGrad)
      ends[BackwardMicrobatch(a) / schedule.microbatches] = static_cast<int>(k) + 1;
  }
  for (int i = 1; i < schedule.steps; ++i) ends[i] = std::max(ends[i], ends[i - 1]);
  return ends;
}

}  // namespace pipewright
