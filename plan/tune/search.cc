#include "plan/tune/search.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "plan/schedules/schedule.h"
#include "plan/schedules/table.h"
#include "plan/search/zb_auto.h"
#include "plan/tune/cuts.h"
#include "plan/tune/forward_only.h"
#include "plan/tune/predict.h"

namespace pipewright {

namespace {

// A candidate that has not been cut and simulated yet.
struct Choice {
  const ScheduleKind* kind = nullptr;
  CutChoice cut;
  double bound = 0;  // seconds
};

bool HasReplicas(const StagePlacement& placement) {
  return std::any_of(placement.begin(), placement.end(),
                     [](const auto& ranks) { return ranks.size() > 1; });
}

TuneKind TuneKindOf(const Choice& choice) {
  return {choice.cut.profile->ranks,
          choice.cut.ranks > 0 || choice.kind->placement == std::string("both")};
}

bool IsChoice(const TuneProblem& problem, const ScheduleKind& kind, int ranks) {
  if (!kind.make || kind.searched || kind.asynchronous) return false;
  // Without backward, schedules do not differ.
  if (problem.forward_only) return kind.name == std::string(kForwardSchedule);
  // A single rank never waits, so one schedule is enough.
  if (ranks == 1) return kind.name == std::string(kDefaultSchedule);
  try {
    return problem.replicas || !HasReplicas(ParsePlacement(DefaultPlacement(kind.name), ranks,
                                                           DefaultStages(kind.name, ranks)));
  } catch (const Error&) {
    return true;  // the numbers do not fit, which is counted when it is tried
  }
}

// Returns a bound on the step that holds for every cut: all work shared evenly, or that of the
// largest module, which only replicas can share.
double BoundOfWork(const TuneProblem& problem, const TuneProfile& profile, int replicas) {
  double sum = 0, largest = 0;
  for (const ProfileNode& node : profile.profile.nodes) {
    const double work =
        node.forward.median +
        std::min(node.backward.median, node.input_gradient.median + node.weight_gradient.median);
    sum += work;
    largest = std::max(largest, work);
  }
  const std::vector<double>& speeds = problem.machines.speeds;
  double speed = profile.ranks, fastest = 1;
  if (!speeds.empty()) {
    const auto end = speeds.begin() + profile.ranks;  // the machines may have more devices
    speed = std::accumulate(speeds.begin(), end, 0.0);
    fastest = *std::max_element(speeds.begin(), end);
  }
  const int microbatches = MicrobatchesOf(problem, profile);
  return std::max(sum * (microbatches - replicas + 1) / speed,
                  largest * (microbatches / replicas) / fastest);
}

// Returns the least share of their time that a forward and a backward take together: 1 unless the
// schedule runs them as one, and the machines gain by that.
double ShareOfPairs(const TuneProblem& problem, const ScheduleKind& kind, int ranks) {
  const std::vector<double>& overlap = problem.machines.overlap;
  const bool pairs =
      kind.shape == ScheduleShape::kDualV || kind.shape == ScheduleShape::kDualTwoWays;
  return overlap.empty() || !pairs ? 1
                                   : *std::min_element(overlap.begin(), overlap.begin() + ranks);
}

// Returns the numbers of stages whose replicas share `ranks` ranks.
std::vector<int> ReplicatedStages(int ranks, int modules) {
  std::vector<int> counts;
  for (int stages = 1; stages < ranks && stages <= modules; ++stages)
    if (ranks <= kAnyReplicas || ranks % stages == 0) counts.push_back(stages);
  return counts;
}

// Returns the numbers of stages of a schedule without replicas: its default number on each rank,
// and more where it allows any. Beyond kMost, messages grow and bubbles hardly shrink.
std::vector<int> StageCounts(const ScheduleKind& kind, int ranks, int modules) {
  constexpr int kMost = 8;  // stages of a rank
  std::vector<int> counts = {DefaultStages(kind.name, ranks)};
  const bool waves = kind.shape == ScheduleShape::kWaves;
  if (kind.stages_per_rank == 1 || (kind.shape != ScheduleShape::kAny && !waves)) return counts;
  const int more = ranks * (waves ? 2 : 1);  // a wave goes there and back
  for (int stages = counts[0] + more; stages <= std::min(kMost * ranks, modules); stages += more)
    counts.push_back(stages);
  return counts;
}

std::vector<Choice> AllChoices(const TuneProblem& problem) {
  std::vector<Choice> choices;
  const int modules = static_cast<int>(problem.manifest.modules.size());
  auto add = [&](const ScheduleKind& kind, CutChoice cut) {
    const int replicas = cut.ranks > 0 ? cut.ranks : kind.placement == std::string("both") ? 2 : 1;
    const double bound = ShareOfPairs(problem, kind, cut.profile->ranks) *
                         BoundOfWork(problem, *cut.profile, replicas);
    choices.push_back({&kind, cut, bound});
    if (!HasLimit(problem)) return;
    cut.memory = true;
    choices.push_back({&kind, cut, bound});
  };
  for (const TuneProfile& profile : problem.profiles)
    for (const ScheduleKind& kind : Schedules()) {
      if (!IsChoice(problem, kind, profile.ranks)) continue;
      for (int stages : StageCounts(kind, profile.ranks, modules))
        add(kind, {&profile, stages, 0, false});
      if (!problem.replicas || kind.shape != ScheduleShape::kAny || kind.stages_per_rank > 1)
        continue;
      for (int stages : ReplicatedStages(profile.ranks, modules))
        if (stages > 1 || problem.forward_only || kind.name == std::string(kDefaultSchedule))
          add(kind, {&profile, stages, profile.ranks, false});
    }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const Choice& a, const Choice& b) { return a.bound < b.bound; });
  return choices;
}

// Returns the conf of a choice; none if there is no such cut.
std::optional<Conf> ConfOf(const Choice& choice, TuneCuts& cuts) {
  std::optional<Conf> conf = cuts.At(choice.cut);
  if (!conf) return conf;
  if (choice.cut.ranks == 0 &&
      (choice.kind->stages_per_rank > 1 || choice.kind->placement != std::string("loop")))
    conf->stage_to_ranks = ParsePlacement(DefaultPlacement(choice.kind->name),
                                          choice.cut.profile->ranks, choice.cut.stages);
  return conf;
}

// Returns true if the memory does not change the cut of a choice.
bool IsCutWithoutLimit(const Choice& choice, TuneCuts& cuts) {
  CutChoice without = choice.cut;
  without.memory = false;
  return cuts.At(without) == cuts.At(choice.cut);
}

// Adds a predicted candidate to those kept.
void Keep(const TuneProblem& problem, const TuneCandidate& candidate, size_t keep,
          TuneResult& result) {
  const bool fits = Fits(problem, candidate);
  result.over += !fits;
  if (fits) {
    const auto [at, is_new] = result.by_kind.try_emplace(TuneKindOf(candidate), candidate);
    if (!is_new && candidate.step < at->second.step) at->second = candidate;
  }
  auto& list = fits ? result.best : result.large;
  auto before = [&](const TuneCandidate& a, const TuneCandidate& b) {
    return fits ? a.step < b.step : LargestPeak(a) < LargestPeak(b);
  };
  list.insert(std::upper_bound(list.begin(), list.end(), candidate, before), candidate);
  size_t alike = 0;
  for (size_t i = 0; i < list.size(); ++i)
    if (list[i].ranks == candidate.ranks && list[i].threads == candidate.threads &&
        list[i].microbatches == candidate.microbatches && ++alike > problem.alike) {
      list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
  if (list.size() > keep) list.pop_back();
  if (!result.best.empty()) result.large.clear();
}

// A search keeps so many candidates, and looks only for steps shorter than a limit.
struct Wanted {
  size_t keep = 1;
  double shorter_than = kNoLimit;  // seconds
};

// Returns the step from which on no candidate of a kind is kept.
double TooSlow(const TuneResult& result, TuneKind kind, const Wanted& wanted) {
  if (result.best.size() < wanted.keep) return wanted.shorter_than;
  double own = kClearlySlower * result.best.front().step;
  if (const auto known = result.by_kind.find(kind); known != result.by_kind.end())
    own = std::min(own, known->second.step);
  return std::min(std::max(own, result.best.back().step), wanted.shorter_than);
}

// Returns true if weights, gradients and optimizer state alone, shared evenly, are over the limits.
bool IsTooLarge(const TuneProblem& problem, const TuneProfile& profile) {
  double bytes = 0, limit = 0;
  for (const ProfileNode& node : profile.profile.nodes)
    bytes += node.parameters + node.buffers + node.trained;
  for (int rank = 0; rank < profile.ranks; ++rank) limit += RankLimit(problem, rank);
  return bytes > limit;
}

// Cuts and predicts a choice, unless a bound excludes it.
void Try(const TuneProblem& problem, const Choice& choice, const Wanted& wanted, TuneCuts& cuts,
         TuneResult& result) {
  if (static_cast<size_t>(choice.cut.stages) > problem.manifest.modules.size())
    return void(++result.unfit);
  const double too_slow = TooSlow(result, TuneKindOf(choice), wanted);
  if (choice.bound >= too_slow) return void(++result.pruned);
  if (!result.best.empty() && !problem.forward_only && IsTooLarge(problem, *choice.cut.profile))
    return void(++result.over);
  std::optional<Conf> conf;
  try {
    conf = ConfOf(choice, cuts);
    if (conf && choice.cut.memory && IsCutWithoutLimit(choice, cuts)) return;  // has been tried
  } catch (const Error&) {
    return void(++result.unfit);
  }
  if (!conf) return void(++(choice.cut.memory ? result.over : result.unfit));
  const TuneProfile& profile = *choice.cut.profile;
  const int microbatches = MicrobatchesOf(problem, profile);
  const Costs costs = CostsOfConf(problem, profile, *conf);
  const double bound = ShareOfPairs(problem, *choice.kind, profile.ranks) *
                       BoundOfConf(*conf, costs, microbatches, choice.kind->splits_backward);
  if (bound >= too_slow) return void(++result.pruned);
  const std::string schedule = problem.forward_only ? kForwardOnly : choice.kind->name;
  Plan order;
  try {
    order = OrderOfSchedule(*conf, schedule, profile.ranks, microbatches);
  } catch (const Error&) {
    return void(++result.unfit);
  }
  if (problem.order && OrderOfStages(order) != problem.order) return void(++result.unfit);
  TuneCandidate candidate =
      PredictWithin({problem, profile, *conf, costs, order}, schedule, too_slow);
  result.simulated += candidate.step > 0;
  if (problem.forward_only && !Fits(problem, candidate) && !HasReplicas(conf->stage_to_ranks))
    candidate = Predict(problem, profile, WithWeightsOnDisk(problem, profile, *conf, microbatches),
                        schedule, microbatches, {});
  candidate.bound = bound;
  Keep(problem, candidate, wanted.keep, result);
}

// Returns the order that zb-auto finds for the stages and placement of a candidate; none if none
// fits. It has one limit for all ranks: the least of theirs, or the largest, with which the order
// may not fit after all.
std::optional<ZbAutoResult> OrderFor(const TuneProblem& problem, const TuneCandidate& start,
                                     const Costs& costs) {
  constexpr double kEffort = 0.1;  // about a second
  std::set<double> limits;
  for (int rank = 0; rank < start.ranks; ++rank) limits.insert(RankLimit(problem, rank));
  const auto stages = static_cast<int>(start.conf.stage_to_ranks.size());
  for (const double limit : std::set<double>{*limits.begin(), *limits.rbegin()}) {
    ZbAutoOptions options;
    options.placement = start.conf.stage_to_ranks;
    options.memory = limit;
    options.effort = kEffort;
    try {
      return ZbAuto(costs, start.ranks, stages, start.microbatches, options);
    } catch (const Error&) {
      // Not even one microbatch at a time fits.
    }
  }
  return std::nullopt;
}

// Searches orders for the stages and placements of the best candidates.
void SearchOrders(const TuneProblem& problem, size_t keep, TuneResult& result) {
  constexpr size_t kSearches = 3;
  constexpr int64_t kActions = 30'000;  // zb-auto tries hundreds of orders
  std::vector<TuneCandidate> starts, best = result.best.empty() ? result.large : result.best;
  for (const auto& [kind, candidate] : result.by_kind)
    if (keep > 1 && candidate.step < kClearlySlower * best.front().step) best.push_back(candidate);
  for (const TuneCandidate& c : best) {
    const auto same = [&](const TuneCandidate& other) {
      return other.conf == c.conf && other.microbatches == c.microbatches &&
             other.threads == c.threads;
    };
    if (c.ranks > 1 && !HasReplicas(c.conf.stage_to_ranks) && starts.size() < kSearches &&
        std::none_of(starts.begin(), starts.end(), same))
      starts.push_back(c);
  }
  for (const TuneCandidate& start : starts) {
    const auto stages = static_cast<int64_t>(start.conf.stage_to_ranks.size());
    if (3 * stages * start.microbatches > kActions) {
      ++result.too_long;
      continue;
    }
    const TuneProfile& profile = ProfileOfCandidate(problem, start);
    const Costs costs = CostsOfConf(problem, profile, start.conf);
    const std::optional<ZbAutoResult> found = OrderFor(problem, start, costs);
    result.searched += found.has_value();
    if (!found || (problem.order && OrderOfStages(found->plan) != problem.order)) {
      ++result.unfit;
      continue;
    }
    std::vector<int> recompute;
    for (int s = 0; s < static_cast<int>(found->recompute.size()); ++s)
      if (found->recompute[static_cast<size_t>(s)]) recompute.push_back(s);
    const Prospect prospect = {problem, profile, start.conf, costs, found->plan};
    try {
      TuneCandidate candidate = PredictOrder(prospect, kSearchedSchedule, recompute);
      candidate.plan = found->plan;
      candidate.plan.recompute = recompute;
      Keep(problem, candidate, keep, result);
    } catch (const Error&) {
      ++result.unfit;
    }
  }
}

}  // namespace

TuneKind TuneKindOf(const TuneCandidate& candidate) {
  return {candidate.ranks, HasReplicas(candidate.conf.stage_to_ranks)};
}

TuneResult SearchTune(const TuneProblem& problem, size_t keep, double shorter_than) {
  TuneResult result;
  TuneCuts cuts(problem);
  const Wanted wanted = {keep, shorter_than};
  for (const Choice& choice : AllChoices(problem)) Try(problem, choice, wanted, cuts, result);
  if (problem.searched) SearchOrders(problem, keep, result);
  return result;
}

bool AnyFits(const TuneProblem& problem) {
  TuneResult result;
  TuneCuts cuts(problem);
  for (const Choice& choice : AllChoices(problem)) {
    Try(problem, choice, {}, cuts, result);
    if (!result.best.empty()) return true;
  }
  if (problem.searched) SearchOrders(problem, 1, result);
  return !result.best.empty();
}

}  // namespace pipewright
