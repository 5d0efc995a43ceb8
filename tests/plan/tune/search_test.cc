// Compares the search of tune with all candidates, under memory limits and with recomputation.
#include "plan/tune/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>

#include "base/error.h"
#include "plan/plan_text.h"
#include "plan/schedules/schedule.h"
#include "plan/schedules/table.h"
#include "plan/tune/cuts.h"
#include "plan/tune/job_memory.h"
#include "plan/tune/needs.h"
#include "plan/tune/predict.h"
#include "plan/tune/stage_order.h"
#include "tests/plan/tune/chain.h"

namespace pipewright {
namespace {

std::vector<double> RandomWork(std::mt19937& random, int modules) {
  std::vector<double> work;
  for (int m = 0; m < modules; ++m)
    work.push_back(std::uniform_real_distribution<double>(1e-4, 1e-3)(random));
  return work;
}

constexpr size_t kAll = 1'000'000;

TEST(Tune, PruningLosesNoneOfTheBest) {
  std::mt19937 random(1);
  for (int modules : {4, 8, 9}) {
    const TuneProblem problem = ProblemOf(RandomWork(random, modules), 16);
    const TuneResult all = SearchTune(problem, kAll), few = SearchTune(problem, 3);
    EXPECT_EQ(all.pruned, 0);
    EXPECT_GT(few.pruned, 0);
    ASSERT_EQ(few.best.size(), 3u);
    for (size_t i = 0; i < few.best.size(); ++i)
      EXPECT_DOUBLE_EQ(few.best[i].step, all.best[i].step);
  }
}

TEST(Tune, PruningLosesNoneOfTheBestOfEachKind) {
  std::mt19937 random(1);
  for (int modules : {4, 8, 9}) {
    TuneProblem problem = ProblemOf(RandomWork(random, modules), 16);
    problem.searched = false;
    const TuneResult all = SearchTune(problem, kAll), few = SearchTune(problem, 3);
    EXPECT_EQ(all.by_kind.size(), 5u);  // a single rank has no replicas
    for (const auto& [kind, candidate] : all.by_kind) {
      if (candidate.step < kClearlySlower * few.best[0].step) {
        EXPECT_DOUBLE_EQ(few.by_kind.at(kind).step, candidate.step) << kind.first << kind.second;
      }
    }
  }
}

TEST(Tune, FindsWhatIsShorterThanALimitWithLessWork) {
  std::mt19937 random(3);
  const TuneProblem problem = ProblemOf(RandomWork(random, 8), 16);
  const TuneResult all = SearchTune(problem, 5);
  ASSERT_EQ(all.best.size(), 5u);
  const TuneResult some = SearchTune(problem, 5, all.best[2].step);
  ASSERT_GE(some.best.size(), 2u);
  for (const size_t i : {0, 1}) EXPECT_EQ(some.best[i].step, all.best[i].step);
  EXPECT_LT(some.simulated, all.simulated);
}

TEST(Tune, EveryCandidateIsWhatItSays) {
  std::mt19937 random(2);
  const TuneProblem problem = ProblemOf(RandomWork(random, 8), 16);
  const TuneResult found = SearchTune(problem, kAll);
  ASSERT_FALSE(found.best.empty());
  for (const TuneCandidate& c : found.best) {
    EXPECT_EQ(c.microbatches * c.microbatch, problem.samples);
    EXPECT_EQ(c.peak_bytes.size(), static_cast<size_t>(c.ranks));
    EXPECT_GE(c.step * (1 + 1e-9), c.bound) << c.schedule;
    const auto profile =
        std::find_if(problem.profiles.begin(), problem.profiles.end(), [&](const TuneProfile& p) {
          return p.ranks == c.ranks && p.profile.microbatch == c.microbatch;
        });
    if (c.plan.ranks.empty()) {
      EXPECT_DOUBLE_EQ(
          Predict(problem, *profile, c.conf, c.schedule, c.microbatches, c.recompute).step, c.step);
      continue;
    }
    const Costs costs = CostsOfConf(problem, *profile, c.conf);
    EXPECT_DOUBLE_EQ(PredictOrder({problem, *profile, c.conf, costs, c.plan}, "", c.recompute).step,
                     c.step);
  }
}

// Two of 4 modules of 1 MB share half of it. Of a ring of 2 ranks, each sends as much as there is.
TEST(Tune, RanksExchangeGradientsOfSharedWeights) {
  const TuneProblem problem = ProblemOf(std::vector<double>(4, 1e-3), 16);
  TuneProfile profile = *std::find_if(problem.profiles.begin(), problem.profiles.end(),
                                      [](const TuneProfile& each) { return each.ranks == 2; });
  for (ProfileNode& node : profile.profile.nodes) node.trained = 1e6;
  profile.profile.links = {{0, 1, 0, 1e9, 0}, {1, 0, 0, 1e9, 0}};
  const auto exchange = [&](const Conf& conf) {
    return ExchangeTime(conf, CostsOfConf(problem, profile, conf), profile.profile);
  };
  const Conf chain = {{0, 0, 1, 1}, false, {{0}, {1}}, {}},
             ends = {{0, 1, 2, 3}, false, {{0}, {1}, {1}, {0}}, {}},
             both = {{0, 0, 1, 1}, false, {{0, 1}, {1, 0}}, {}};
  EXPECT_EQ(exchange(chain), 0);
  EXPECT_NEAR(exchange(both), 4000, 1e-6);
  profile.profile.shared = {{{0, 3}, 5e5}};
  EXPECT_NEAR(exchange(chain), 500, 1e-6);
  EXPECT_EQ(exchange(ends), 0) << "both are on rank 0";
  EXPECT_NEAR(exchange(both), 3500, 1e-6) << "each rank has one copy";
  EXPECT_NEAR(1e6 * (Predict(problem, profile, chain, "1f1b", 4, {}).step -
                     [&] {
                       TuneProfile without = profile;
                       without.profile.shared.clear();
                       return Predict(problem, without, chain, "1f1b", 4, {}).step;
                     }()),
              500, 1e-6);
}

// The pipeline fills and drains for each minibatch, and the optimizer runs once.
TEST(Tune, PredictsMinibatchesInARow) {
  TuneProblem problem = ProblemOf(std::vector<double>(4, 1e-3), 16);
  for (TuneProfile& profile : problem.profiles) {
    profile.step_per_byte = 1e-9;
    for (ProfileNode& node : profile.profile.nodes) node.trained = 1e6;
  }
  TuneProfile profile = *std::find_if(problem.profiles.begin(), problem.profiles.end(),
                                      [](const TuneProfile& each) { return each.ranks == 2; });
  profile.profile.links = {{0, 1, 1e-4, 1e9, 0}, {1, 0, 1e-4, 1e9, 0}};
  TuneProfile without = profile;
  without.step_per_byte = without.exchange = 0;
  for (const bool replicas : {false, true}) {
    Conf conf = GroupModules(4, replicas ? 1 : 2);  // four modules of 1 MB are on each rank, or two
    if (replicas) conf.stage_to_ranks = {{0, 1}};
    const auto predict = [&](const TuneProfile& from, int minibatches) {
      const Costs costs = CostsOfConf(problem, from, conf);
      const Plan order = OrderOfSchedule(conf, "1f1b", 2, 4);
      return PredictOrder({problem, from, conf, costs, order}, "1f1b", {}, minibatches);
    };
    const TuneCandidate one = predict(profile, 1), three = predict(profile, 3),
                        alone = predict(without, 1);
    EXPECT_EQ(three.minibatches, 3);
    EXPECT_GT(one.step, alone.step + 1e-3);
    EXPECT_NEAR(three.step, one.step + 2 * alone.step, 1e-9);
    EXPECT_NEAR(three.busy, one.busy + 2 * alone.busy, 1e-9);
    EXPECT_NEAR(three.bubble * three.step, one.bubble * one.step + 2 * alone.bubble * alone.step,
                1e-9);
    for (size_t rank = 0; rank < 2; ++rank)
      EXPECT_NEAR(three.peak_bytes[rank], one.peak_bytes[rank] + (replicas ? 4e6 : 2e6), 1);
  }
}

// If the work justifies transfers, more ranks are faster; otherwise one rank is.
TEST(Tune, UsesTheRanksThatPay) {
  EXPECT_EQ(SearchTune(ProblemOf(std::vector<double>(8, 1e-3), 16), 1).best[0].ranks, 4);
  TuneProblem slow = ProblemOf(std::vector<double>(8, 1e-6), 16);
  for (TuneProfile& one : slow.profiles)
    for (int from = 0; from < one.ranks; ++from)
      for (int to = 0; to < one.ranks; ++to)
        if (from != to) one.profile.links.push_back({from, to, 1, 1e9, 0});  // a second of latency
  const TuneCandidate best = SearchTune(slow, 1).best[0];
  EXPECT_EQ(best.ranks, 1);
  EXPECT_EQ(best.microbatches, 1);  // each has a fixed cost
}

TEST(Tune, LeavesOutReplicasWhereTheyMayNotBe) {
  const auto with_replicas = [](const TuneResult& result) {
    return std::count_if(result.best.begin(), result.best.end(), [](const TuneCandidate& each) {
      return std::any_of(each.conf.stage_to_ranks.begin(), each.conf.stage_to_ranks.end(),
                         [](const auto& ranks) { return ranks.size() > 1; });
    });
  };
  TuneProblem problem = ProblemOf(std::vector<double>(8, 1e-3), 16);
  const TuneResult all = SearchTune(problem, kAll);
  ASSERT_GT(with_replicas(all), 0);
  problem.replicas = false;
  const TuneResult single = SearchTune(problem, kAll);
  EXPECT_EQ(with_replicas(single), 0);
  EXPECT_EQ(single.best.size(), all.best.size() - static_cast<size_t>(with_replicas(all)));
}

// looped-bfs runs backward from the last microbatch to the first.
TEST(Tune, LeavesOutOtherOrdersOfAddition) {
  const auto schedules = [](const TuneResult& result) {
    std::set<std::string> names;
    for (const TuneCandidate& each : result.best)
      if (each.microbatches > 1) names.insert(each.schedule);
    return names;
  };
  TuneProblem problem = ProblemOf(std::vector<double>(8, 1e-3), 16);
  EXPECT_TRUE(schedules(SearchTune(problem, kAll)).count("looped-bfs"));
  problem.order = StageOrder{{{0, 1, 2, 3}, {0, 1, 2, 3}}};
  const std::set<std::string> left = schedules(SearchTune(problem, kAll));
  EXPECT_FALSE(left.count("looped-bfs"));
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv"})
    EXPECT_TRUE(left.count(name)) << name;
  problem.order = StageOrder{{{0, 1, 2, 3}, {3, 2, 1, 0}}};
  EXPECT_EQ(schedules(SearchTune(problem, kAll)), std::set<std::string>{"looped-bfs"});
}

// So a conf for other ranks does not change the bits of a job.
TEST(Tune, EverySchedulesOrderIsThatOfAllStagesOnAnyRanks) {
  for (const ScheduleKind& kind : Schedules()) {
    if (!kind.make) continue;
    const auto order = [&](int ranks) {
      return OrderOfStages(MakeSchedule(kind.name, ranks, 0, 8, {}));
    };
    EXPECT_TRUE(order(2)) << kind.name;
    EXPECT_EQ(order(2), order(4)) << kind.name;
    if (std::string(kind.name) == "chimera") {
      EXPECT_EQ(order(2)->at(1), (ReplicaOrder{{1, 3, 5, 7}, {1, 3, 5, 7}}));
    }
  }
  EXPECT_EQ(OrderOfStages(ReadPlan("0F0,0F1,0B0,0B1\n1F0,1F1,1B1,1B0\n", "p.csv")), std::nullopt);
}

// A minibatch of 9 samples in 4 microbatches: 3, 2, 2 and 2.
TEST(Tune, KeepsUnequalMicrobatches) {
  TuneProblem problem = ProblemOf(std::vector<double>(8, 1e-3), 9);
  problem.profiles = {{2, ProfileOf(std::vector<double>(8, 1e-3), 3)}};
  problem.microbatch_size = 3, problem.microbatches = 4;
  const TuneResult found = SearchTune(problem, kAll);
  ASSERT_FALSE(found.best.empty());
  for (const TuneCandidate& c : found.best) EXPECT_EQ(c.microbatches, 4);
}

TEST(Tune, KeepsWithinTheMemory) {
  std::mt19937 random(3);
  TuneProblem problem = ProblemOf(RandomWork(random, 8), 16);
  problem.recompute = false;
  const TuneResult free = SearchTune(problem, kAll);
  std::vector<double> peaks;
  for (const TuneCandidate& c : free.best) peaks.push_back(LargestPeak(c));
  std::sort(peaks.begin(), peaks.end());
  problem.memory = peaks[peaks.size() / 4];
  const TuneResult limited = SearchTune(problem, kAll);
  ASSERT_FALSE(limited.best.empty());
  EXPECT_GT(limited.over, 0);
  for (const TuneCandidate& c : limited.best) EXPECT_LE(LargestPeak(c), problem.memory);
  // The best candidate that fits.
  const auto fits = std::find_if(free.best.begin(), free.best.end(), [&](const TuneCandidate& c) {
    return LargestPeak(c) <= problem.memory;
  });
  EXPECT_DOUBLE_EQ(limited.best[0].step, fits->step);
}

// A limit under which the fastest cut fits does not add the same cut again.
TEST(Tune, CandidatesDiffer) {
  TuneProblem problem = ProblemOf(std::vector<double>(8, 1e-3), 16);
  const int free = SearchTune(problem, kAll).simulated;
  problem.memory = 1e15;
  const TuneResult found = SearchTune(problem, kAll);
  EXPECT_EQ(found.simulated, free);
  for (size_t i = 0; i < found.best.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const TuneCandidate &a = found.best[i], &b = found.best[j];
      EXPECT_FALSE(a.conf == b.conf && a.schedule == b.schedule &&
                   a.microbatches == b.microbatches && a.plan.ranks == b.plan.ranks)
          << a.schedule << " on " << a.ranks << " ranks, " << a.microbatches << " microbatches";
    }
}

// Below the memory of the smallest candidate nothing fits; with exactly that, it does.
TEST(Tune, NamesTheLeastMemory) {
  TuneProblem problem = ProblemOf(std::vector<double>(8, 1e-3), 16);
  problem.memory = 1;
  problem.searched = false;
  const TuneResult none = SearchTune(problem, 3);
  EXPECT_TRUE(none.best.empty());
  EXPECT_EQ(none.simulated, 0);
  ASSERT_FALSE(none.large.empty());
  for (const TuneCandidate& c : none.large) {
    const auto profile =
        std::find_if(problem.profiles.begin(), problem.profiles.end(), [&](const TuneProfile& p) {
          return p.ranks == c.ranks && p.profile.microbatch == c.microbatch;
        });
    ASSERT_NE(profile, problem.profiles.end());
    const TuneCandidate simulated =
        Predict(problem, *profile, c.conf, c.schedule, c.microbatches, c.recompute);
    EXPECT_EQ(simulated.peak_bytes, c.peak_bytes) << c.schedule;
  }
  problem.memory = LargestPeak(none.large[0]);
  const TuneResult some = SearchTune(problem, 3);
  ASSERT_FALSE(some.best.empty());
  EXPECT_LE(LargestPeak(some.best[0]), problem.memory);
}

// Recomputation of single stages, of which there are as few as fit.
TEST(Tune, RecomputesOnlyWhereNothingElseFits) {
  TuneProblem problem = ProblemOf(std::vector<double>(8, 1e-3), 16);
  problem.searched = false;
  for (const TuneCandidate& c : SearchTune(problem, kAll).best) EXPECT_TRUE(c.recompute.empty());
  problem.recompute = false;
  problem.memory = 1;
  problem.memory = LargestPeak(SearchTune(problem, 1).large[0]);
  while (!SearchTune(problem, 1).best.empty()) problem.memory *= 0.95;
  problem.recompute = true;
  const TuneResult found = SearchTune(problem, kAll);
  ASSERT_FALSE(found.best.empty());
  bool some = false;
  for (const TuneCandidate& c : found.best) {
    ASSERT_FALSE(c.recompute.empty());
    some |= c.recompute.size() < c.conf.stage_to_ranks.size();
    // With any of these stages left out, the prediction is over the limit.
    const auto profile =
        std::find_if(problem.profiles.begin(), problem.profiles.end(), [&](const TuneProfile& p) {
          return p.ranks == c.ranks && p.profile.microbatch == c.microbatch;
        });
    for (int stage : c.recompute) {
      std::vector<int> less = c.recompute;
      std::erase(less, stage);
      const TuneCandidate other =
          Predict(problem, *profile, c.conf, c.schedule, c.microbatches, less);
      EXPECT_TRUE(!Fits(problem, other) || other.step >= c.step) << c.schedule << " " << stage;
    }
  }
  EXPECT_TRUE(some);
}

TEST(Tune, RefusesAScheduleThatDoesNotFit) {
  const TuneProblem problem = ProblemOf(std::vector<double>(4, 1e-3), 4);
  const TuneProfile& two = problem.profiles[3];
  ASSERT_EQ(two.ranks, 2);
  EXPECT_THROW(Predict(problem, two, GroupModules(4, 2), "zbv", 4, {}), Error);
}

// Calls `use` with every way to cut `modules` modules into stages of which replicas are on `ranks`
// ranks.
void AllPartitions(int modules, int ranks, Conf conf, const std::function<void(const Conf&)>& use) {
  const int done = static_cast<int>(conf.module_to_stage.size());
  int used = 0;
  for (const auto& replicas : conf.stage_to_ranks) used += static_cast<int>(replicas.size());
  if (done == modules) {
    if (used == ranks) use(conf);
    return;
  }
  for (int next = done + 1; next <= modules; ++next)
    for (int replicas = 1; replicas <= ranks - used; ++replicas) {
      Conf longer = conf;
      longer.module_to_stage.resize(static_cast<size_t>(next),
                                    static_cast<int>(conf.stage_to_ranks.size()));
      longer.stage_to_ranks.emplace_back();
      for (int r = 0; r < replicas; ++r) longer.stage_to_ranks.back().push_back(used + r);
      AllPartitions(modules, ranks, longer, use);
    }
}

// Chains of unequal layers on 8 devices.
TEST(Tune, IsAsGoodAsAllPartitionsWithReplicas) {
  std::mt19937 random(1);
  for (int chain = 0; chain < 6; ++chain) {
    std::vector<double> work = {3e-3, 1e-3, 5e-3, 2e-3, 9e-3};
    if (chain > 0)
      for (double& time : work) time = 1e-3 * static_cast<double>(1 + random() % 12);
    TuneProblem problem = ProblemOf(work, 64);
    problem.profiles = {{8, ProfileOf(work, 1)}};
    double best = kNoLimit;
    int partitions = 0;
    AllPartitions(5, 8, {}, [&](const Conf& conf) {
      ++partitions;
      best = std::min(best, Predict(problem, problem.profiles[0], conf, "1f1b", 64, {}).step);
    });
    EXPECT_EQ(partitions, 330);  // the ways to write 12 = 5 + 7 with bars between: C(11, 4)
    EXPECT_LE(SearchTune(problem, 1).best.at(0).step, best * (1 + 1e-9)) << chain;
    double cut = kNoLimit;  // by the cuts of tune with the same schedule
    for (int stages = 1; stages <= 5; ++stages)
      if (const auto conf = CutInto(problem, {&problem.profiles[0], stages, 8, false}))
        cut = std::min(cut, Predict(problem, problem.profiles[0], *conf, "1f1b", 64, {}).step);
    EXPECT_NEAR(cut, best, 1e-9 * best) << chain;
  }
}

// Six modules on two ranks, each with weights and gradients of 1 MB.
TuneProblem UnevenProblem() {
  const std::vector<double> work = {1e-3, 1e-3, 1e-3, 1e-3, 4e-3, 9e-3};
  TuneProblem problem = ProblemOf(work, 1);
  Profile profile = ProfileOf(work, 1);
  for (ProfileNode& node : profile.nodes) node.parameters = node.trained = 1e6;
  problem.profiles = {{2, profile}};
  return problem;
}

// Checks of lists of operations need more memory than autograd.
TEST(Tune, AutogradFitsWhereChecksDoNot) {
  TuneProblem problem = UnevenProblem();
  for (ProfileNode& node : problem.profiles[0].profile.nodes) node.peak = 2e6 + 1e6;
  problem.memory = 1;
  CountOptimizer(Job(), problem);
  const double needed = FindNeeds(problem).memory;
  problem.memory = needed / 1.02;
  ASSERT_TRUE(SearchTune(problem, 1).best.empty());
  ASSERT_TRUE(UseAutograd(Job(), problem));
  const std::vector<TuneCandidate> found = SearchTune(problem, 100).best;
  ASSERT_FALSE(found.empty());
  for (const TuneCandidate& each : found) EXPECT_EQ(each.body, "autograd");
}

TEST(Tune, ChecksOfACandidate) {
  Conf conf = GroupModules(6, 2);
  conf.stage_to_ranks = {{0}, {1}};
  for (const bool merges : {false, true}) {
    TuneProblem problem = UnevenProblem();
    problem.merges = merges;
    for (ProfileNode& node : problem.profiles[0].profile.nodes) node.kept = 1e5, node.peak = 3e6;
    problem.profiles[0].loss_peak = 1e8;  // larger than all peaks of modules
    TuneProblem without = problem;
    problem.memory = 1e12;
    CountOptimizer(Job(), problem);
    CountOptimizer(Job(), without);
    const auto predict = [&](const TuneProblem& p) {
      return Predict(p, p.profiles[0], conf, "1f1b", 4, {});
    };
    TuneCandidate candidate = predict(problem);
    const std::vector<double> lower = predict(without).peak_bytes,
                              checks = CheckBytes(Job(), problem, candidate);
    for (size_t rank : {0, 1}) {
      EXPECT_GE(checks[rank], merges ? 3e5 : 1e5);
      EXPECT_EQ(checks[rank], candidate.peak_bytes[rank] - lower[rank]);
    }
    ASSERT_TRUE(UseAutograd(Job(), problem));
    EXPECT_EQ(CheckBytes(Job(), problem, candidate), checks);
    candidate.body = "autograd";
    EXPECT_EQ(CheckBytes(Job(), problem, candidate), (std::vector<double>{0, 0}));
  }
}

// A stage that will be one module is checked as a whole.
TEST(Tune, ChecksOfAStageAddUp) {
  TuneProblem problem = UnevenProblem();
  problem.merges = true;
  const int modules = static_cast<int>(problem.manifest.modules.size());
  Conf conf = GroupModules(modules, 2);
  conf.stage_to_ranks = {{0}, {1}};
  const auto peaks = [&] {
    return Predict(problem, problem.profiles[0], conf, "1f1b", 4, {}).peak_bytes;
  };
  const std::vector<double> without = peaks();
  std::vector<double> sums(2, 0), &checks = problem.profiles[0].checks;
  for (int m = 0; m < modules; ++m) {
    checks.push_back(1e9 * (m + 1));
    sums[static_cast<size_t>(conf.module_to_stage[static_cast<size_t>(m)])] += checks.back();
  }
  const std::vector<double> with = peaks();
  for (size_t rank : {0, 1}) EXPECT_NEAR(with[rank], without[rank] + sums[rank], 1e7);
}

TEST(Tune, CutsWithinTheMemory) {
  TuneProblem problem = UnevenProblem();
  const CutChoice free = {&problem.profiles[0], 2, 0, false};
  EXPECT_EQ(CutInto(problem, free)->module_to_stage, (std::vector<int>{0, 0, 0, 0, 0, 1}));
  problem.loss_module = 0;
  problem.profiles[0].loss_forward = 20e-3;
  EXPECT_EQ(CutInto(problem, free)->module_to_stage, (std::vector<int>{0, 0, 0, 0, 1, 1}));
  problem.profiles[0].loss_forward = 0;
  CutChoice within = free;
  within.memory = true;
  EXPECT_EQ(CutInto(problem, within)->module_to_stage, CutInto(problem, free)->module_to_stage);
  problem.memory = 5 * (2e6 + 1e6);  // weights, gradients and activations of four, but not of five
  const std::vector<int> cut = CutInto(problem, within)->module_to_stage;
  EXPECT_LE(std::count(cut.begin(), cut.end(), 0), 4);
  problem.memory = 1;
  EXPECT_EQ(CutInto(problem, within), std::nullopt);
}

// The fastest cut puts five of six modules on the first device, which has memory for two.
TEST(Tune, CutsWithinTheMemoryOfDevices) {
  TuneProblem problem = UnevenProblem();
  problem.recompute = false;
  problem.machines.speeds = {1, 1};
  problem.machines.machine = {0, 0};
  problem.machines.within.push_back({0, 0, 0, 1e9, 0});
  problem.machines.between = problem.machines.within[0];
  problem.machines.memory = {3 * (2e6 + 1e6), 5 * (2e6 + 1e6)};  // two and four modules
  const TuneResult found = SearchTune(problem, kAll);
  ASSERT_FALSE(found.best.empty());
  for (const TuneCandidate& c : found.best) EXPECT_TRUE(Fits(problem, c)) << c.schedule;
  const CutChoice within = {&problem.profiles[0], 2, 0, true};
  const std::optional<Conf> conf = CutInto(problem, within);
  ASSERT_TRUE(conf);
  const std::vector<int>& cut = conf->module_to_stage;
  const int first = conf->stage_to_ranks[0][0] == 0 ? 0 : 1;  // the stage of the small device
  EXPECT_LE(std::count(cut.begin(), cut.end(), first), 2);
  problem.machines.memory = {2 * (2e6 + 1e6), 5 * (2e6 + 1e6)};  // one and four
  EXPECT_EQ(CutInto(problem, within), std::nullopt);
  problem.machines.memory = {kNoLimit, kNoLimit};
  EXPECT_TRUE(CutInto(problem, within));
  EXPECT_GT(found.searched, 0) << "although no order fits on the smaller device";
}

// With few microbatches, more stages on a rank have a smaller bubble.
TEST(Tune, TriesMoreStagesOnARank) {
  TuneProblem problem = ProblemOf(std::vector<double>(16, 1e-3), 4);
  problem.profiles = {{2, ProfileOf(std::vector<double>(16, 1e-3), 1)}};
  problem.replicas = problem.searched = false;
  std::map<std::string, std::set<size_t>> stages;
  std::map<size_t, double> interleaved;
  for (const TuneCandidate& c : SearchTune(problem, kAll).best) {
    stages[c.schedule].insert(c.conf.stage_to_ranks.size());
    if (c.schedule == "interleaved") interleaved[c.conf.stage_to_ranks.size()] = c.step;
  }
  for (const char* any : {"interleaved", "bfs", "looped-bfs", "zb1p"})
    EXPECT_EQ(stages.at(any), (std::set<size_t>{4, 6, 8, 10, 12, 14, 16})) << any;
  EXPECT_EQ(stages.at("hanayo"), (std::set<size_t>{4, 8, 12, 16}));
  for (const char* fixed : {"zbv", "v-half"}) EXPECT_EQ(stages.at(fixed), std::set<size_t>{4});
  EXPECT_EQ(stages.at("1f1b"), std::set<size_t>{2});
  EXPECT_LT(interleaved[8], 0.97 * interleaved[4]);
}

// It is counted, and not just left out.
TEST(Tune, CountsSchedulesThatNeedMoreModules) {
  TuneProblem problem = ProblemOf({1e-3, 1e-3}, 4);
  problem.profiles = {{2, ProfileOf({1e-3, 1e-3}, 1)}};
  problem.replicas = problem.searched = false;
  int two_stages = 0;
  for (const ScheduleKind& kind : Schedules())
    two_stages += kind.make && !kind.asynchronous && kind.stages_per_rank > 1;
  EXPECT_GE(SearchTune(problem, kAll).unfit, two_stages);
}

}  // namespace
}  // namespace pipewright
