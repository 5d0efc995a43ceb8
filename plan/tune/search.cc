#include "plan/tune/search.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "plan/lowering/lower.h"
#include "plan/partition/io/request.h"
#include "plan/partition/io/stage_costs.h"
#include "plan/partition/solve.h"
#include "plan/plan.h"
#include "plan/schedules/schedule.h"
#include "plan/schedules/table.h"
#include "plan/simulate/measure.h"
#include "plan/simulate/simulate.h"

namespace pipewright {

namespace {

// A candidate whose step has not been simulated yet.
struct Choice {
  const TuneProfile* profile = nullptr;
  const ScheduleKind* kind = nullptr;
  const std::vector<int>* module_to_stage = nullptr;
  int stages = 0;
  double bound = 0;  // seconds
};

int MicrobatchesOf(const TuneProblem& problem, const TuneProfile& profile) {
  const int64_t size = profile.profile.microbatch;
  if (size == problem.microbatch_size) return problem.microbatches;
  return static_cast<int>((problem.samples + size - 1) / size);
}

// Returns the stages of the modules that minimize the load of the slowest stage; empty if the
// modules cannot form this many stages.
std::vector<int> CutInto(const TuneProblem& problem, const Profile& profile, int stages) {
  PartitionInput input;
  input.kind = PartitionInput::kProfile;
  input.profile = profile;
  PartitionRequest request;
  request.stages = stages;
  request.optimizer_state = problem.optimizer_state;
  ProfileProblem nodes;
  SolveOptions options;
  options.max_sets = 200'000;  // a second or two for each of a few dozen cuts
  const PartitionResult found = SolvePartition(MakeProblem(input, request, nodes), options);
  if (!found.feasible) return {};
  std::vector<int> stage_of(problem.manifest.modules.size(), 0);
  for (size_t s = 0; s < found.stages.size(); ++s)
    for (int node : found.stages[s].nodes)
      stage_of[static_cast<size_t>(profile.nodes[static_cast<size_t>(node)].module)] =
          static_cast<int>(s);
  return stage_of;
}

std::vector<int> StageOfNode(const Profile& profile, const std::vector<int>& module_to_stage) {
  std::vector<int> stage_of;
  for (const ProfileNode& node : profile.nodes)
    stage_of.push_back(module_to_stage[static_cast<size_t>(node.module)]);
  return stage_of;
}

// Returns the work of the busiest rank in seconds. Each stage's microbatches are shared by its
// replicas.
double BusiestRank(const Profile& profile, const std::vector<int>& module_to_stage,
                   const StagePlacement& placement, int ranks, int microbatches) {
  std::vector<double> stage(placement.size(), 0), rank(static_cast<size_t>(ranks), 0);
  for (const ProfileNode& node : profile.nodes)
    stage[static_cast<size_t>(module_to_stage[static_cast<size_t>(node.module)])] +=
        node.forward.median +
        std::min(node.backward.median, node.input_gradient.median + node.weight_gradient.median);
  for (size_t s = 0; s < placement.size(); ++s)
    for (int replica : placement[s])
      rank[static_cast<size_t>(replica)] +=
          stage[s] * (microbatches / static_cast<int>(placement[s].size()));
  return *std::max_element(rank.begin(), rank.end());
}

bool HasReplicas(const StagePlacement& placement) {
  return std::any_of(placement.begin(), placement.end(),
                     [](const auto& ranks) { return ranks.size() > 1; });
}

bool IsChoice(const ScheduleKind& kind, int ranks) {
  if (!kind.make || kind.searched || kind.asynchronous) return false;
  // A single rank never waits, so one schedule is enough.
  return ranks > 1 || kind.name == std::string(kDefaultSchedule);
}

// Cuts by (profile, stages). Choices point into the map, whose nodes do not move.
using Cuts = std::map<std::pair<const TuneProfile*, int>, std::vector<int>>;

std::vector<Choice> AllChoices(const TuneProblem& problem, Cuts& cuts) {
  std::vector<Choice> choices;
  for (const TuneProfile& profile : problem.profiles)
    for (const ScheduleKind& kind : Schedules()) {
      if (!IsChoice(kind, profile.ranks)) continue;
      const int stages = DefaultStages(kind.name, profile.ranks);
      if (stages > static_cast<int>(problem.manifest.modules.size())) continue;
      const StagePlacement placement =
          ParsePlacement(DefaultPlacement(kind.name), profile.ranks, stages);
      if (!problem.replicas && HasReplicas(placement)) continue;
      auto [cut, is_new] = cuts.try_emplace({&profile, stages});
      if (is_new) cut->second = CutInto(problem, profile.profile, stages);
      if (cut->second.empty()) continue;
      const double bound = BusiestRank(profile.profile, cut->second, placement, profile.ranks,
                                       MicrobatchesOf(problem, profile));
      choices.push_back({&profile, &kind, &cut->second, stages, bound});
    }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const Choice& a, const Choice& b) { return a.bound < b.bound; });
  return choices;
}

Plan MakeScheduleOf(const Conf& conf, const std::string& schedule, int ranks, int microbatches) {
  ScheduleOptions options;
  options.of_run = true;
  return MakeSchedule(schedule, ranks, static_cast<int>(conf.stage_to_ranks.size()), microbatches,
                      conf.stage_to_ranks, options);
}

TuneCandidate PredictOrder(const TuneProblem& problem, const TuneProfile& profile,
                           const Conf& conf, const std::string& schedule, const Plan& order,
                           bool recompute) {
  TuneCandidate candidate;
  candidate.ranks = profile.ranks;
  candidate.microbatches = order.microbatches;
  candidate.microbatch = profile.profile.microbatch;
  candidate.schedule = schedule;
  candidate.recompute = recompute;
  candidate.conf = conf;
  const Plan plan = Lower(order, MakeStageGraph(problem.manifest, conf));
  const Costs costs =
      ParseCosts(CostsOfStages(profile.profile, StageOfNode(profile.profile, conf.module_to_stage),
                               problem.optimizer_state),
                 "profile");
  SimulateOptions options;
  if (recompute) options.recompute.assign(conf.stage_to_ranks.size(), 1);
  const Figures figures = Measure(plan, costs, Simulate(plan, costs, options), options);
  constexpr double kMicroseconds = 1e-6;  // the costs' unit
  candidate.step = figures.makespan * kMicroseconds;
  for (const RankFigures& rank : figures.ranks) {
    candidate.peak_bytes.push_back(rank.peak_bytes);
    candidate.bubble = std::max(candidate.bubble, rank.bubble_rate(figures.makespan));
    candidate.bound = std::max(candidate.bound, rank.busy * kMicroseconds);
  }
  return candidate;
}

// Returns the prediction, with recomputation if only that fits in memory; none if the schedule is
// not defined for these numbers, or not allowed.
std::optional<TuneCandidate> PredictWithin(const TuneProblem& problem, const Choice& choice) {
  const std::string schedule = choice.kind->name;
  const int ranks = choice.profile->ranks;
  Conf conf;
  conf.module_to_stage = *choice.module_to_stage;
  conf.stage_to_ranks = ParsePlacement(DefaultPlacement(schedule), ranks, choice.stages);
  Plan order;
  try {
    order = MakeScheduleOf(conf, schedule, ranks, MicrobatchesOf(problem, *choice.profile));
  } catch (const Error&) {
    return std::nullopt;
  }
  if (problem.order && OrderOfStages(order) != problem.order) return std::nullopt;
  TuneCandidate plain = PredictOrder(problem, *choice.profile, conf, schedule, order, false);
  if (LargestPeak(plain) <= problem.memory || !problem.recompute) return plain;
  TuneCandidate again = PredictOrder(problem, *choice.profile, conf, schedule, order, true);
  return LargestPeak(again) < LargestPeak(plain) ? again : plain;
}

}  // namespace

double LargestPeak(const TuneCandidate& candidate) {
  return *std::max_element(candidate.peak_bytes.begin(), candidate.peak_bytes.end());
}

TuneCandidate Predict(const TuneProblem& problem, const TuneProfile& profile, const Conf& conf,
                      const std::string& schedule, int microbatches, bool recompute) {
  return PredictOrder(problem, profile, conf, schedule,
                      MakeScheduleOf(conf, schedule, profile.ranks, microbatches), recompute);
}

TuneResult SearchTune(const TuneProblem& problem, size_t keep) {
  TuneResult result;
  Cuts cuts;
  for (const Choice& choice : AllChoices(problem, cuts)) {
    if (result.best.size() >= keep && choice.bound >= result.best.back().step) {
      ++result.pruned;
      continue;
    }
    const std::optional<TuneCandidate> candidate = PredictWithin(problem, choice);
    if (!candidate) {
      ++result.unfit;
      continue;
    }
    ++result.simulated;
    const bool fits = LargestPeak(*candidate) <= problem.memory;
    result.over += !fits;
    auto& list = fits ? result.best : result.large;
    auto before = [&](const TuneCandidate& a, const TuneCandidate& b) {
      return fits ? a.step < b.step : LargestPeak(a) < LargestPeak(b);
    };
    list.insert(std::upper_bound(list.begin(), list.end(), *candidate, before), *candidate);
    if (list.size() > keep) list.pop_back();
    if (!result.best.empty()) result.large.clear();
  }
  return result;
}

}  // namespace pipewright
