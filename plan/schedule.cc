#include "plan/schedule.h"

#include <algorithm>
#include <charconv>

#include "plan/actions.h"
#include "plan/error.h"
#include "plan/schedule_kinds.h"
#include "plan/text.h"

namespace pipewright {

namespace {

struct Generator {
  const char* name;
  Plan (*make)(const ScheduleRequest&);
  const char* placement;  // by itself
  int stages_per_rank;    // by itself
};

const Generator kGenerators[] = {
    {"gpipe", Gpipe, "loop", 1},
    {"1f1b", OneForwardOneBackward, "loop", 1},
};

const Generator& Find(const std::string& name) {
  for (const Generator& g : kGenerators)
    if (name == g.name) return g;
  throw Error("schedule", "unknown schedule \"" + name + "\"" + Suggest(name, ScheduleNames()),
              "known: " + Join(ScheduleNames(), ", "));
}

std::string Count(int n, const char* what) {
  return std::to_string(n).append(" ").append(what).append(n == 1 ? "" : "s");
}

void CheckPlacement(const Placement& placement, int ranks) {
  std::vector<char> used(ranks);
  for (size_t s = 0; s < placement.size(); ++s) {
    std::string where = "placement, stage " + std::to_string(s);
    std::vector<int> sorted = placement[s];
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty()) throw Error(where, "no rank runs it");
    if (sorted.front() < 0 || sorted.back() >= ranks)
      throw Error(where, "rank " +
                             std::to_string(sorted.front() < 0 ? sorted.front() : sorted.back()) +
                             " is not one of " + Count(ranks, "rank"));
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      throw Error(where, "a rank is given twice");
    for (int r : sorted) used[r] = true;
  }
  for (int r = 0; r < ranks; ++r)
    if (!used[r])
      throw Error("placement", "rank " + std::to_string(r) + " runs no stage",
                  "give every rank a stage, or use fewer ranks");
}

// Forward only is the same order with the backward left out: what remains needs nothing else.
void DropBackward(Plan& plan) {
  for (auto& actions : plan.ranks) {
    std::vector<Action> kept;
    for (const Action& a : actions)
      if (HasForward(a)) kept.push_back(Compute(ActionKind::kForward, a.stage, a.microbatch));
    actions = std::move(kept);
  }
  plan.forward_only = true;
  plan.layout = {};
}

}  // namespace

bool IsPlainPipeline(const Placement& placement) {
  for (size_t s = 0; s < placement.size(); ++s)
    if (placement[s] != std::vector<int>{static_cast<int>(s)}) return false;
  return true;
}

bool IsLoop(const Placement& placement, int ranks) {
  for (size_t s = 0; s < placement.size(); ++s)
    if (placement[s] != std::vector<int>{static_cast<int>(s) % ranks}) return false;
  return placement.size() % ranks == 0;
}

bool HasReplicas(const Placement& placement) {
  for (const auto& ranks : placement)
    if (ranks.size() > 1) return true;
  return false;
}

Action Compute(ActionKind kind, int stage, int microbatch) {
  Action a;
  a.kind = kind, a.stage = stage, a.microbatch = microbatch;
  return a;
}

Placement ParsePlacement(const std::string& text, int ranks, int stages) {
  Placement placement;
  if (text == "loop" || text == "v") {
    for (int s = 0; s < stages; ++s) {
      int there = s % ranks;
      bool back = text == "v" && s / ranks % 2 == 1;
      placement.push_back({back ? ranks - 1 - there : there});
    }
    return placement;
  }
  for (const std::string& entry : Split(text, ',')) {
    auto& replicas = placement.emplace_back();
    for (const std::string& number : Split(entry, '+')) {
      int rank = -1;
      auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
      if (error != std::errc() || end != number.data() + number.size() || rank < 0)
        throw Error("placement \"" + text + "\"", "\"" + entry + "\" is not a rank",
                    "loop, v, or a rank for each stage: \"0,1,1,0\"; replicas: \"0+1,2\"");
      replicas.push_back(rank);
    }
  }
  if (placement.size() != static_cast<size_t>(stages))
    throw Error("placement \"" + text + "\"",
                "it gives " + Count(static_cast<int>(placement.size()), "rank") + " for " +
                    Count(stages, "stage"),
                "give " + std::to_string(stages) + " entries, or --stages " +
                    std::to_string(placement.size()));
  return placement;
}

std::string DefaultPlacement(const std::string& name) { return Find(name).placement; }

int DefaultStages(const std::string& name, int ranks) { return Find(name).stages_per_rank * ranks; }

const std::vector<std::string>& ScheduleNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Generator& g : kGenerators) out.push_back(g.name);
    return out;
  }();
  return names;
}

Plan MakeSchedule(const std::string& name, int ranks, int stages, int microbatches,
                  const Placement& placement, const ScheduleOptions& options) {
  const Generator& generator = Find(name);
  auto at_least_one = [&](int n, const char* what) {
    if (n < 1) throw Error("schedule " + name, Count(n, what) + ": at least 1 is needed");
  };
  at_least_one(ranks, "rank");
  at_least_one(microbatches, "microbatch");
  if (stages == 0)
    stages = placement.empty() ? DefaultStages(name, ranks) : static_cast<int>(placement.size());
  at_least_one(stages, "stage");
  ScheduleRequest request;
  request.name = name;
  request.ranks = ranks, request.stages = stages, request.microbatches = microbatches;
  request.options = &options;
  request.placement =
      placement.empty() ? ParsePlacement(generator.placement, ranks, stages) : placement;
  if (request.placement.size() != static_cast<size_t>(stages))
    throw Error("schedule " + name, Count(stages, "stage") + ", but the placement has " +
                                        std::to_string(request.placement.size()));
  if (placement.empty() && stages < ranks)
    throw Error("schedule " + name,
                Count(stages, "stage") + " for " + Count(ranks, "rank") + ": a rank has none",
                "use " + Count(ranks, "stage") + " or more, or " + Count(stages, "rank"));
  CheckPlacement(request.placement, ranks);
  Plan plan = generator.make(request);
  plan.stages = stages;
  plan.microbatches = microbatches;
  if (options.forward_only) DropBackward(plan);
  return plan;
}

}  // namespace pipewright
