#include "plan/tune/predict.h"

#include <algorithm>
#include <map>
#include <set>

#include "plan/actions.h"
#include "plan/lowering/lower.h"
#include "plan/partition/io/stage_costs.h"
#include "plan/schedules/schedule.h"
#include "plan/simulate/measure.h"
#include "plan/simulate/rank_account.h"
#include "plan/simulate/simulate.h"
#include "plan/tune/forward_only.h"

namespace pipewright {

namespace {

constexpr double kMicroseconds = 1e6;  // the unit of costs, per second

LinkCosts LinkOf(const ProfileLink& link) {
  return {link.latency * kMicroseconds, link.bytes_per_second / kMicroseconds};
}

// Returns the backward that a forward of this stage runs with as one: that of the rank's other
// stage, or of the slowest of several.
double PairedBackward(const Conf& conf, const Costs& costs, size_t stage, int rank) {
  double longest = -1;
  for (size_t s = 0; s < conf.stage_to_ranks.size(); ++s)
    if (s != stage &&
        std::count(conf.stage_to_ranks[s].begin(), conf.stage_to_ranks[s].end(), rank))
      longest = std::max(longest, costs.stages[s].B);
  return longest < 0 ? costs.stages[stage].B : longest;
}

// Divides times of stages by the speed of their ranks, and replaces the links.
void UseMachines(const TuneMachines& machines, const Conf& conf, Costs& costs) {
  const auto overlap_on = [&](int rank) {
    return machines.overlap.empty() ? 1.0 : machines.overlap[static_cast<size_t>(rank)];
  };
  for (size_t s = 0; s < conf.stage_to_ranks.size(); ++s)
    for (int rank : conf.stage_to_ranks[s]) {
      const double speed = machines.speeds[static_cast<size_t>(rank)], overlap = overlap_on(rank);
      if (speed == 1 && overlap == 1) continue;
      StageCosts stage = costs.stages[s];
      if (overlap < 1)
        stage.overlap = overlap * (stage.F + PairedBackward(conf, costs, s, rank)) / speed;
      for (double* time : {&stage.F, &stage.I, &stage.W, &stage.B, &stage.step, &stage.recompute})
        if (*time > 0) *time /= speed;
      costs.stage_on_rank[{static_cast<int>(s), rank}] = stage;
    }
  costs.links.clear();
  const int ranks = CountRanks(conf);
  const std::vector<int> machine = {machines.machine.begin(), machines.machine.begin() + ranks};
  if (machine.front() == machine.back()) {
    costs.link = LinkOf(machines.within[static_cast<size_t>(machine.front())]);
    return;
  }
  costs.link = LinkOf(machines.between);
  costs.machine = machine;
  for (int m = 0; m <= machine.back(); ++m)
    costs.within.push_back(LinkOf(machines.within[static_cast<size_t>(m)]));
}

std::vector<char> Flags(const std::vector<int>& stages, size_t count) {
  std::vector<char> flags(stages.empty() ? 0 : count, 0);
  for (int stage : stages) flags[static_cast<size_t>(stage)] = 1;
  return flags;
}

// Returns what can be said of a candidate without its order: no times, no memory.
TuneCandidate Describe(const Prospect& prospect, const Plan& plan, const std::string& schedule) {
  TuneCandidate candidate;
  candidate.ranks = static_cast<int>(plan.ranks.size());
  candidate.threads = prospect.profile.profile.threads;
  candidate.microbatches = plan.microbatches;
  candidate.microbatch = prospect.profile.profile.microbatch;
  candidate.schedule = schedule;
  candidate.body = prospect.profile.body;
  candidate.conf = prospect.conf;
  return candidate;
}

TuneCandidate PredictLowered(const Prospect& prospect, const Plan& plan,
                             const std::string& schedule, const std::vector<int>& recompute) {
  TuneCandidate candidate = Describe(prospect, plan, schedule);
  candidate.recompute = recompute;
  SimulateOptions options;
  options.recompute = Flags(recompute, prospect.conf.stage_to_ranks.size());
  const Figures figures =
      Measure(plan, prospect.costs, Simulate(plan, prospect.costs, options), options);
  const bool forward_only = prospect.problem.forward_only;
  const double exchange =
      forward_only ? 0
                   : prospect.profile.exchange *
                         ExchangeTime(prospect.conf, prospect.costs, prospect.profile.profile);
  candidate.step = (figures.makespan + exchange) / kMicroseconds;
  for (const RankFigures& rank : figures.ranks) {
    candidate.peak_bytes.push_back(rank.peak_bytes);
    candidate.bubble = std::max(candidate.bubble, rank.bubble_rate(figures.makespan));
    candidate.busy = std::max(candidate.busy, rank.busy / kMicroseconds);
  }
  if (forward_only) AddForwardMemory(prospect, plan, candidate.peak_bytes);
  return candidate;
}

// Returns the memory that each rank takes with these stages recomputing.
std::vector<double> PeaksWith(const Prospect& prospect, const Plan& plan,
                              const std::vector<int>& recompute) {
  const std::vector<char> flags = Flags(recompute, prospect.conf.stage_to_ranks.size());
  std::vector<double> peaks;
  for (int rank = 0; rank < static_cast<int>(plan.ranks.size()); ++rank)
    peaks.push_back(PeakOfRank(plan, rank, prospect.costs, flags));
  return peaks;
}

// Returns the stage of `rank` that frees most bytes for its time if it recomputes, too; -1 if none
// frees any.
int NextToRecompute(const Prospect& prospect, int rank, const std::vector<int>& recompute) {
  int best = -1;
  double most = 0;
  for (int s = 0; s < static_cast<int>(prospect.conf.stage_to_ranks.size()); ++s) {
    const std::vector<int>& ranks = prospect.conf.stage_to_ranks[static_cast<size_t>(s)];
    const StageCosts& costs = CostsOf(prospect.costs, s, rank);
    if (!std::count(ranks.begin(), ranks.end(), rank) || costs.recompute < 0 ||
        std::count(recompute.begin(), recompute.end(), s))
      continue;
    const double worth = (costs.activation - costs.checkpoint) / std::max(costs.recompute, 1e-9);
    if (worth > most) best = s, most = worth;
  }
  return best;
}

}  // namespace

double LargestPeak(const TuneCandidate& candidate) {
  return *std::max_element(candidate.peak_bytes.begin(), candidate.peak_bytes.end());
}

bool HasLimit(const TuneProblem& problem) {
  const std::vector<double>& memory = problem.machines.memory;
  return problem.memory < kNoLimit ||
         std::any_of(memory.begin(), memory.end(), [](double bytes) { return bytes < kNoLimit; });
}

double RankLimit(const TuneProblem& problem, int rank) {
  const std::vector<double>& memory = problem.machines.memory;
  return memory.empty() ? problem.memory
                        : std::min(problem.memory, memory[static_cast<size_t>(rank)]);
}

int MicrobatchesOf(const TuneProblem& problem, const TuneProfile& profile) {
  const int64_t size = profile.profile.microbatch;
  if (size == problem.microbatch_size) return problem.microbatches;
  return static_cast<int>((problem.samples + size - 1) / size);
}

bool Fits(const TuneProblem& problem, const TuneCandidate& candidate) {
  for (size_t r = 0; r < candidate.peak_bytes.size(); ++r)
    if (candidate.peak_bytes[r] > RankLimit(problem, static_cast<int>(r))) return false;
  return true;
}

int LossModule(const TuneProblem& problem) {
  return problem.loss_module < 0 ? static_cast<int>(problem.manifest.modules.size()) - 1
                                 : problem.loss_module;
}

const TuneProfile& ProfileOfCandidate(const TuneProblem& problem, const TuneCandidate& candidate) {
  return *std::find_if(problem.profiles.begin(), problem.profiles.end(), [&](const TuneProfile& p) {
    return p.ranks == candidate.ranks && p.profile.threads == candidate.threads &&
           p.profile.microbatch == candidate.microbatch;
  });
}

Costs CostsOfConf(const TuneProblem& problem, const TuneProfile& profile, const Conf& conf) {
  std::vector<int> stage_of;
  for (const ProfileNode& node : profile.profile.nodes)
    stage_of.push_back(conf.module_to_stage[static_cast<size_t>(node.module)]);
  // CountOptimizer has added the optimizer's state to the modules.
  Costs costs = ParseCosts(CostsOfStages(profile.profile, stage_of, 0), "profile");
  const int loss_stage = conf.module_to_stage[static_cast<size_t>(LossModule(problem))];
  StageCosts& last = costs.stages[static_cast<size_t>(loss_stage)];
  last.F += profile.loss_forward * kMicroseconds;
  last.I += profile.loss_backward * kMicroseconds;
  last.B += profile.loss_backward * kMicroseconds;
  const auto peaks = [](StageCosts& stage) {
    std::vector<double*> bytes;
    for (PeakBytes* peak : {&stage.peak, &stage.recompute_peak})
      bytes.insert(bytes.end(), {&peak->I, &peak->B, &peak->first_B});
    return bytes;
  };
  for (double* bytes : peaks(last)) *bytes = std::max(*bytes, last.activation + profile.loss_peak);
  last.activation += profile.loss_kept;
  std::vector<double> checks(costs.stages.size(), 0);  // of one module at a time
  for (size_t m = 0; m < profile.checks.size(); ++m) {
    double& check = checks[static_cast<size_t>(conf.module_to_stage[m])];
    check = problem.merges ? check + profile.checks[m] : std::max(check, profile.checks[m]);
  }
  for (size_t s = 0; s < checks.size(); ++s)
    for (double* bytes : peaks(costs.stages[s])) *bytes += checks[s];
  for (StageCosts& stage : costs.stages)
    stage.step = stage.gradients * profile.step_per_byte * kMicroseconds;
  if (!problem.machines.speeds.empty()) UseMachines(problem.machines, conf, costs);
  std::set<int> readers;
  for (int stage : conf.offloaded_stages)
    for (int rank : conf.stage_to_ranks[static_cast<size_t>(stage)]) readers.insert(rank);
  costs.disk.bandwidth =
      problem.disk / kMicroseconds / std::max(1.0, static_cast<double>(readers.size()));
  return costs;
}

double ExchangeTime(const Conf& conf, const Costs& costs, const Profile& profile) {
  std::map<int, double> time;  // by rank
  const auto add = [&](const std::vector<int>& ranks, double bytes) {
    const auto count = static_cast<double>(ranks.size());
    if (count < 2) return;
    for (size_t r = 0; r < ranks.size(); ++r)
      time[ranks[r]] += 2 * (count - 1) *
                        TransferTime(costs, ranks[r], ranks[(r + 1) % ranks.size()], bytes / count);
  };
  std::vector<double> own;  // bytes of each stage's gradients, without shared weights
  for (const StageCosts& stage : costs.stages) own.push_back(stage.gradients);
  for (const ProfileShared& shared : profile.shared) {
    std::set<int> ranks;
    for (int node : shared.nodes) {
      const int module = profile.nodes[static_cast<size_t>(node)].module;
      const auto stage = static_cast<size_t>(conf.module_to_stage[static_cast<size_t>(module)]);
      own[stage] -= shared.bytes;  // each node counts it as its own
      ranks.insert(conf.stage_to_ranks[stage].begin(), conf.stage_to_ranks[stage].end());
    }
    add({ranks.begin(), ranks.end()}, shared.bytes);
  }
  for (size_t s = 0; s < own.size(); ++s) add(conf.stage_to_ranks[s], std::max(0.0, own[s]));
  double longest = 0;
  for (const auto& [rank, each] : time) longest = std::max(longest, each);
  return longest;
}

Plan OrderOfSchedule(const Conf& conf, const std::string& schedule, int ranks, int microbatches) {
  if (schedule == kForwardOnly) return ForwardOrder(conf, ranks, microbatches);
  ScheduleOptions options;
  options.of_run = true;
  return MakeSchedule(schedule, ranks, static_cast<int>(conf.stage_to_ranks.size()), microbatches,
                      conf.stage_to_ranks, options);
}

Plan OrderOfCandidate(const TuneCandidate& candidate) {
  if (!candidate.plan.ranks.empty()) return candidate.plan;
  return OrderOfSchedule(candidate.conf, candidate.schedule, candidate.ranks,
                         candidate.microbatches);
}

Plan WholePlan(const Prospect& prospect) {
  if (HasTransfers(prospect.order)) return prospect.order;
  Plan plan = Lower(prospect.order, MakeStageGraph(prospect.problem.manifest, prospect.conf));
  if (prospect.problem.forward_only) InsertForwardLoads(prospect.conf, prospect.costs, plan);
  return plan;
}

TuneCandidate PredictOrder(const Prospect& prospect, const std::string& schedule,
                           const std::vector<int>& recompute, int minibatches) {
  const Plan plan = WholePlan(prospect);
  TuneCandidate candidate = PredictLowered(prospect, plan, schedule, recompute);
  if (minibatches == 1) return candidate;
  TuneProfile profile = prospect.profile;
  Costs costs = prospect.costs;
  profile.exchange = 0;
  for (StageCosts& stage : costs.stages) stage.step = 0;
  for (auto& [stage_and_rank, stage] : costs.stage_on_rank) stage.step = 0;
  const TuneCandidate other = PredictLowered(
      {prospect.problem, profile, prospect.conf, costs, prospect.order}, plan, schedule, recompute);
  candidate.minibatches = minibatches;
  const double idle =
      candidate.bubble * candidate.step + (minibatches - 1) * other.bubble * other.step;
  candidate.step += (minibatches - 1) * other.step;
  candidate.bubble = idle / candidate.step;
  candidate.busy += (minibatches - 1) * other.busy;
  for (size_t s = 0; s < costs.stages.size(); ++s)
    for (const int rank : prospect.conf.stage_to_ranks[s])  // sums of earlier minibatches
      candidate.peak_bytes[static_cast<size_t>(rank)] += costs.stages[s].gradients;
  return candidate;
}

TuneCandidate PredictWithin(const Prospect& prospect, const std::string& schedule,
                            double too_slow) {
  const TuneProblem& problem = prospect.problem;
  const Plan plan = WholePlan(prospect);
  if (problem.forward_only) return PredictLowered(prospect, plan, schedule, {});
  TuneCandidate plain = Describe(prospect, plan, schedule);
  plain.peak_bytes = PeaksWith(prospect, plan, {});
  // On every rank over its limit, one more stage recomputes. Memory does not depend on times, so
  // only what fits is simulated.
  TuneCandidate candidate = plain;
  while (problem.recompute && !Fits(problem, candidate)) {
    std::vector<int> more = candidate.recompute;
    for (int rank = 0; rank < candidate.ranks; ++rank) {
      if (candidate.peak_bytes[static_cast<size_t>(rank)] <= RankLimit(problem, rank)) continue;
      if (const int stage = NextToRecompute(prospect, rank, more); stage >= 0)
        more.push_back(stage);
    }
    if (more == candidate.recompute) break;
    std::sort(more.begin(), more.end());
    candidate.recompute = more;
    candidate.peak_bytes = PeaksWith(prospect, plan, more);
  }
  if (!Fits(problem, candidate))
    return LargestPeak(candidate) < LargestPeak(plain) ? candidate : plain;
  candidate = PredictLowered(prospect, plan, schedule, candidate.recompute);
  if (candidate.step >= too_slow) return candidate;
  // Later stages may have made earlier ones needless.
  constexpr int64_t kActions = 20'000'000;  // of the plans tried, at most
  int64_t actions = 0, in_plan = 0;
  for (const std::vector<Action>& rank : plan.ranks) in_plan += static_cast<int64_t>(rank.size());
  for (int stage : std::vector<int>(candidate.recompute)) {
    if ((actions += in_plan) > kActions) break;
    TuneCandidate other = candidate;
    std::erase(other.recompute, stage);
    other.peak_bytes = PeaksWith(prospect, plan, other.recompute);
    if (!Fits(problem, other)) continue;
    other = PredictLowered(prospect, plan, schedule, other.recompute);
    if (other.step <= candidate.step) candidate = std::move(other);
  }
  return candidate;
}

TuneCandidate Predict(const TuneProblem& problem, const TuneProfile& profile, const Conf& conf,
                      const std::string& schedule, int microbatches,
                      const std::vector<int>& recompute) {
  const Costs costs = CostsOfConf(problem, profile, conf);
  const Plan order = OrderOfSchedule(conf, schedule, profile.ranks, microbatches);
  return PredictOrder({problem, profile, conf, costs, order}, schedule, recompute);
}

double BoundOfConf(const Conf& conf, const Costs& costs, int microbatches, bool splits_backward) {
  const size_t stages = conf.stage_to_ranks.size();
  // Since stages are numbered along the values, the stages that one depends on come before it.
  std::vector<double> before(stages, 0), after(stages, 0);
  for (const auto& [ends, edge] : costs.edges) {
    const auto from = static_cast<size_t>(ends.first), to = static_cast<size_t>(ends.second);
    double forward = kNoLimit, backward = kNoLimit;  // on the fastest replica
    for (int rank : conf.stage_to_ranks[from]) {
      const StageCosts& c = CostsOf(costs, ends.first, rank);
      forward = std::min(forward, c.F);
      backward = std::min({backward, c.B, c.I + c.W});
    }
    before[to] = std::max(before[to], before[from] + forward);
    if (edge.back > 0 && !splits_backward) after[to] = std::max(after[to], after[from] + backward);
  }
  std::map<int, std::vector<size_t>> held;  // by rank
  for (size_t s = 0; s < stages; ++s)
    for (int rank : conf.stage_to_ranks[s]) held[rank].push_back(s);
  double bound = 0;
  for (const auto& [rank, own] : held) {
    double work = 0, head = kNoLimit, tail = kNoLimit;
    for (size_t s : own) {
      const StageCosts& c = CostsOf(costs, static_cast<int>(s), rank);
      const int share = microbatches / static_cast<int>(conf.stage_to_ranks[s].size());
      work += share * (c.F + std::min(c.B, c.I + c.W));
      head = std::min(head, before[s]);
      tail = std::min(tail, after[s]);
    }
    bound = std::max(bound, head + work + tail);
  }
  return bound / kMicroseconds;
}

}  // namespace pipewright
