#include "plan/schedules/schedule.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "plan/actions.h"
#include "plan/schedules/generators.h"
#include "plan/schedules/table.h"

namespace pipewright {

namespace {

// Finds a schedule that MakeSchedule can make.
const ScheduleKind& Find(const std::string& name) {
  CheckScheduleName(name, "schedule");
  const ScheduleKind* kind = FindSchedule(name);
  if (kind->make) return *kind;
  throw Error("schedule " + name, "its order needs more than ranks, stages and microbatches");
}

std::string AskRanks(const ScheduleOptions& options, int count) {
  return options.of_run ? "a conf for " + Counted(count, "rank")
                        : "--ranks " + std::to_string(count);
}

std::string AskMicrobatches(const ScheduleOptions& options, int count) {
  return options.of_run ? "\"microbatches\": " + std::to_string(count) + " in the job"
                        : "--microbatches " + std::to_string(count);
}

std::string AskStages(const ScheduleOptions& options, const ScheduleKind& g, int ranks, int count) {
  if (!options.of_run) return "--stages " + std::to_string(count);
  std::string conf = "a conf of " + Counted(count, "stage");
  if (count > 32) return conf;  // too many to print
  return conf + ", on the ranks " + PlacementText(ParsePlacement(g.placement, ranks, count)) +
         " (pipewright conf PACKAGE --ranks " + std::to_string(ranks) + " --stages " +
         std::to_string(count) + " --placement " + g.placement + ")";
}

struct Numbers {
  int ranks = 0, stages = 0, microbatches = 0;
};

// Returns the nearest numbers that the schedule accepts on this many ranks.
Numbers Nearest(const ScheduleKind& g, int ranks, Numbers asked) {
  Numbers n{ranks, asked.stages, asked.microbatches};
  if (g.shape == ScheduleShape::kAny) return n;
  bool two_ways = g.shape == ScheduleShape::kTwoWays || g.shape == ScheduleShape::kDualTwoWays;
  bool dual = g.shape == ScheduleShape::kDualV || g.shape == ScheduleShape::kDualTwoWays;
  n.stages = ranks * g.stages_per_rank;
  if (g.shape == ScheduleShape::kWaves)
    n.stages = std::max(1, (asked.stages + ranks) / (2 * ranks)) * 2 * ranks;
  if (two_ways) n.microbatches += n.microbatches % 2;
  if (dual) n.microbatches = std::max(n.microbatches, 2 * ranks);
  return n;
}

// Throws Error naming the first number that does not fit, and the nearest numbers that do.
// `own_stages`: the user did not set the number of stages.
void CheckNumbers(const ScheduleKind& g, Numbers asked, bool own_stages, bool own_placement,
                  const ScheduleOptions& options) {
  auto [ranks, stages, microbatches] = asked;
  bool two_ways = g.shape == ScheduleShape::kTwoWays || g.shape == ScheduleShape::kDualTwoWays;
  Numbers near = Nearest(g, ranks, asked);
  bool odd = two_ways && ranks % 2;
  if (!odd && near.stages == stages && near.microbatches == microbatches) return;

  auto changes = [&](int on) {
    Numbers n = Nearest(g, on, asked);
    std::vector<std::string> parts;
    if (on != ranks) parts.push_back(AskRanks(options, on));
    bool other = n.stages != stages && (on == ranks || !(own_stages || options.of_run));
    if (other) parts.push_back(AskStages(options, g, on, n.stages));
    if (n.microbatches != microbatches) parts.push_back(AskMicrobatches(options, n.microbatches));
    if (!own_placement && !options.of_run)
      parts.push_back(std::string("--placement ") + g.placement);
    return Join(parts, options.of_run ? " and " : " ");
  };
  std::string what, cure = changes(odd ? ranks + 1 : ranks);
  const char* next = options.of_run ? " and " : " --";
  bool several = odd || cure.find(next, 1) != std::string::npos;
  if (odd) {
    what = Counted(ranks, "rank") + ", and it needs an even number";
    std::string fewer = ranks > 1 ? changes(ranks - 1) : "";
    bool plain = cure == AskRanks(options, ranks + 1) && fewer == AskRanks(options, ranks - 1);
    if (!fewer.empty()) cure += plain ? " or " + std::to_string(ranks - 1) : ", or " + fewer;
  } else if (near.stages != stages) {
    what = Counted(stages, "stage") + " on " + Counted(ranks, "rank") + ", and it needs " +
           (g.shape == ScheduleShape::kWaves ? "a multiple of " + std::to_string(2 * ranks)
                                             : Counted(g.stages_per_rank, "stage") + " per rank");
  } else if (two_ways && microbatches % 2) {
    what =
        Counted(microbatches, "microbatch") + ", and it needs an even number (half per direction)";
  } else {
    what = Counted(microbatches, "microbatch") + " on " + Counted(ranks, "rank") +
           ", and it needs two per rank";
  }
  throw Error(std::string("schedule ") + g.name, what,
              (several ? "the nearest that work: " : "the nearest that works: ") + cure);
}

}  // namespace

// Formats the placement with its ranks renumbered without gaps.
static std::string Renumbered(const StagePlacement& placement) {
  std::map<int, int> names;
  for (const auto& on : placement)
    for (int r : on) names[r] = 0;
  int next = 0;
  for (auto& [rank, name] : names) name = next++;
  StagePlacement dense = placement;
  for (auto& on : dense)
    for (int& r : on) r = names[r];
  std::string ranks = "--ranks " + std::to_string(next);
  if (dense.size() > 32) return ranks + ", numbered 0 to " + std::to_string(next - 1);
  return dense == placement ? ranks : "--placement \"" + PlacementText(dense) + "\" " + ranks;
}

void CheckPlacement(const StagePlacement& placement, int ranks) {
  std::vector<char> used(ranks);
  for (size_t s = 0; s < placement.size(); ++s) {
    std::string where = "placement, stage " + std::to_string(s);
    std::vector<int> sorted = placement[s];
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty()) throw Error(where, "no rank runs it");
    if (sorted.front() < 0 || sorted.back() >= ranks)
      throw Error(where,
                  "rank " + std::to_string(sorted.front() < 0 ? sorted.front() : sorted.back()) +
                      " is not one of " + Counted(ranks, "rank"),
                  "ranks 0 to " + std::to_string(ranks - 1) + ", or " + Renumbered(placement));
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
      throw Error(where, "a rank is given twice");
    for (int r : sorted) used[r] = true;
  }
  for (int r = 0; r < ranks; ++r)
    if (!used[r])
      throw Error("placement", "rank " + std::to_string(r) + " runs no stage",
                  "give every rank a stage, or use " + Renumbered(placement));
}

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

StagePlacement ParsePlacement(const std::string& text, int ranks, int stages) {
  StagePlacement placement;
  if (text == "loop" || text == "v") {
    for (int s = 0; s < stages; ++s) {
      int there = s % ranks;
      bool back = text == "v" && s / ranks % 2 == 1;
      placement.push_back({back ? ranks - 1 - there : there});
    }
    return placement;
  }
  if (text == "both") {
    if (ranks % 2)
      throw Error("placement both",
                  Counted(ranks, "rank") + ": the middle one would hold a stage twice",
                  "the nearest that work: --ranks " + std::to_string(ranks + 1) +
                      (ranks > 1 ? " or " + std::to_string(ranks - 1) : ""));
    for (int s = 0; s < stages; ++s) placement.push_back({s % ranks, ranks - 1 - s % ranks});
    return placement;
  }
  for (const std::string& entry : Split(text, ',')) {
    auto& replicas = placement.emplace_back();
    for (const std::string& number : Split(entry, '+')) {
      int rank = -1;
      auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), rank);
      if (error != std::errc() || end != number.data() + number.size() || rank < 0)
        throw Error("placement \"" + text + "\"", "\"" + entry + "\" is not a rank",
                    "loop, v, both, or a rank for each stage: \"0,1,1,0\"; replicas: \"0+1,2\"");
      replicas.push_back(rank);
    }
  }
  if (placement.size() != static_cast<size_t>(stages)) {
    std::string on = Renumbered(placement);
    if (on == "--ranks " + std::to_string(ranks)) on.clear();
    throw Error(
        "placement \"" + text + "\"",
        "it gives " + Counted(placement.size(), "rank") + " for " + Counted(stages, "stage"),
        "give " + std::to_string(stages) + " entries, or --stages " +
            std::to_string(placement.size()) + (on.empty() ? "" : " ") + on);
  }
  return placement;
}

std::string PlacementText(const StagePlacement& placement) {
  std::vector<std::string> stages;
  for (const std::vector<int>& replicas : placement) {
    std::vector<std::string> ranks;
    for (int rank : replicas) ranks.push_back(std::to_string(rank));
    stages.push_back(Join(ranks, "+"));
  }
  return Join(stages, ",");
}

std::string DefaultPlacement(const std::string& name) { return Find(name).placement; }

int DefaultStages(const std::string& name, int ranks) { return Find(name).stages_per_rank * ranks; }

const std::vector<std::string>& ScheduleNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const ScheduleKind& kind : Schedules())
      if (kind.make) out.push_back(kind.name);
    return out;
  }();
  return names;
}

std::vector<std::string> AllScheduleNames() {
  std::vector<std::string> names;
  for (const ScheduleKind& kind : Schedules()) names.push_back(kind.name);
  return names;
}

void CheckScheduleName(const std::string& name, const std::string& where) {
  const std::vector<std::string> names = AllScheduleNames();
  if (!FindSchedule(name))
    throw Error(where, "unknown schedule \"" + name + "\"" + Suggest(name, names),
                "known: " + Join(names, ", ") + ", or a CSV file");
}

Plan MakeSchedule(const std::string& name, int ranks, int stages, int microbatches,
                  const StagePlacement& placement, const ScheduleOptions& options) {
  const ScheduleKind& generator = Find(name);
  auto at_least_one = [&](int n, const char* what) {
    if (n < 1) throw Error("schedule " + name, Counted(n, what) + ": at least 1 is needed");
  };
  at_least_one(ranks, "rank");
  at_least_one(microbatches, "microbatch");
  bool own_stages = stages == 0;
  if (own_stages)
    stages = placement.empty() ? DefaultStages(name, ranks) : static_cast<int>(placement.size());
  at_least_one(stages, "stage");
  if (placement.empty() && stages < ranks && generator.shape == ScheduleShape::kAny)
    throw Error("schedule " + name,
                Counted(stages, "stage") + " cannot occupy " + Counted(ranks, "rank") +
                    ": every rank needs a stage",
                "try --stages " + std::to_string(ranks) + " or --ranks " + std::to_string(stages));
  if (!placement.empty() && placement.size() != static_cast<size_t>(stages))
    throw Error("schedule " + name, Counted(stages, "stage") + ", but the placement has " +
                                        std::to_string(placement.size()));
  CheckNumbers(generator, {ranks, stages, microbatches}, own_stages, placement.empty(), options);
  StagePlacement own = ParsePlacement(generator.placement, ranks, stages);
  if (generator.shape != ScheduleShape::kAny && !placement.empty() && placement != own)
    throw Error("schedule " + name, "it runs on its own placement only",
                options.of_run
                    ? "use " + AskStages(options, generator, ranks, stages)
                    : std::string("leave the placement out, or use ") + generator.placement);
  ScheduleRequest request{ranks, stages, microbatches, placement.empty() ? own : placement};
  CheckPlacement(request.placement, ranks);
  Plan plan = generator.make(request);
  plan.stages = stages;
  plan.microbatches = microbatches;
  if (options.forward_only) DropBackward(plan);
  return plan;
}

}  // namespace pipewright
