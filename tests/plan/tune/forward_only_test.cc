// Inference: the choice of weights on disk against all choices, and predictions by hand.
#include "plan/tune/forward_only.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "plan/lowering/lower.h"
#include "plan/tune/help.h"
#include "plan/tune/needs.h"
#include "plan/tune/predict.h"
#include "plan/tune/search.h"
#include "tests/plan/tune/chain.h"

namespace pipewright {
namespace {

using Bytes = std::vector<int64_t>;

// Returns the most bytes that stay in `memory` beside two slots for the largest of the others; -1
// if nothing does.
int64_t MostBytes(const Bytes& bytes, int64_t memory) {
  int64_t most = -1;
  for (unsigned choice = 0; choice < 1u << bytes.size(); ++choice) {
    int64_t kept = 0, largest = 0;
    for (size_t m = 0; m < bytes.size(); ++m)
      if (choice >> m & 1)
        kept += bytes[m];
      else
        largest = std::max(largest, bytes[m]);
    if (kept + 2 * largest <= memory) most = std::max(most, kept);
  }
  return most;
}

TEST(ForwardOnly, TheFewestBytesAreOnDisk) {
  std::mt19937 random(3);
  int refused = 0, partly = 0;
  for (int round = 0; round < 300; ++round) {
    Bytes bytes(1 + random() % 8);
    for (int64_t& each : bytes) each = random() % 6 == 0 ? 0 : static_cast<int64_t>(random() % 40);
    const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
    const auto memory = static_cast<int64_t>(random() % static_cast<uint64_t>(all + 2));
    const std::vector<bool> resident = ResidentModules(bytes, memory);
    int64_t kept = 0, largest = 0;
    for (size_t m = 0; m < bytes.size(); ++m) {
      EXPECT_TRUE(resident[m] || bytes[m] > 0);
      if (resident[m])
        kept += bytes[m];
      else
        largest = std::max(largest, bytes[m]);
    }
    const int64_t most = MostBytes(bytes, memory);
    if (most < 0) {
      EXPECT_EQ(kept, 0);
      ++refused;
      continue;
    }
    EXPECT_EQ(kept, most);
    EXPECT_LE(kept + 2 * largest, memory);
    partly += kept > 0 && kept < all;
  }
  EXPECT_GT(refused, 10);
  EXPECT_GT(partly, 10);
}

constexpr double kWeights = 1e6, kForward = 1.1e-3, kPeak = 2e4, kValue = 1e4;  // of a module

// Four modules and microbatches of one row, whose forward takes `kForward`.
TuneProblem FourModules(int rows) {
  TuneProblem problem = ProblemOf(std::vector<double>(4, 1e-3), rows);
  std::erase_if(problem.profiles, [](const TuneProfile& each) {
    return each.ranks > 2 || each.profile.microbatch > 1;
  });
  for (TuneProfile& each : problem.profiles)
    for (ProfileNode& node : each.profile.nodes) {
      node.kept = 0;
      node.backward = node.input_gradient = node.weight_gradient = {};
      node.parameters = kWeights;
      node.forward_only_peak = kPeak;
    }
  problem.forward_only = true;
  problem.recompute = problem.searched = problem.replicas = false;
  return problem;
}

const TuneProfile& On(const TuneProblem& problem, int ranks) {
  for (const TuneProfile& each : problem.profiles)
    if (each.ranks == ranks) return each;
  throw std::runtime_error("no profile");
}

TEST(ForwardOnly, AStageRunsAsSoonAsItsInputIsThere) {
  const TuneProblem problem = FourModules(8);
  const Conf conf = {{0, 0, 0, 1}, false, {{0}, {1}}, {}};
  const TuneCandidate found = Predict(problem, On(problem, 2), conf, kForwardOnly, 8, {});
  EXPECT_NEAR(found.step, (8 * 3 + 1) * kForward, 1e-9);
  EXPECT_NEAR(found.busy, 8 * 3 * kForward, 1e-9);
  ASSERT_EQ(found.peak_bytes.size(), 2u);
  // Rank 1 makes all outputs, and receives one value while it computes. Rank 0 then gathers the
  // outputs and puts them together, which takes more than its forwards.
  EXPECT_EQ(found.peak_bytes[0], 3 * kWeights + 2 * 8 * kValue);
  EXPECT_EQ(found.peak_bytes[1], kWeights + kPeak + kValue + 8 * kValue);
}

// The first of two replicas computes 3 microbatches of 5, as of 6.
TEST(ForwardOnly, AReplicaMayHaveOneMicrobatchMore) {
  const TuneProblem problem = FourModules(6);
  const Conf conf = {{0, 0, 0, 0}, false, {{1, 0}}, {}};
  const TuneCandidate five = Predict(problem, On(problem, 2), conf, kForwardOnly, 5, {}),
                      six = Predict(problem, On(problem, 2), conf, kForwardOnly, 6, {});
  EXPECT_EQ(five.peak_bytes[1], six.peak_bytes[1]);
}

// Rank 0 starts more microbatches while rank 1 computes, and keeps a value of each for its last
// stage.
TEST(ForwardOnly, ValuesOfSeveralMicrobatchesWait) {
  TuneProblem problem = FourModules(8);
  const Conf conf = {{0, 1, 2, 3}, false, {{0}, {1}, {1}, {0}}, {}};
  const auto peak = [&] {
    return Predict(problem, On(problem, 2), conf, kForwardOnly, 8, {}).peak_bytes[0];
  };
  int waiting = 0, most = 0;
  const Plan order = OrderOfSchedule(conf, kForwardOnly, 2, 8);
  for (const Action& action : order.ranks[0])
    most = std::max(most, waiting += action.stage == 0 ? 1 : -1);
  EXPECT_GT(most, 1);
  const double without = peak();
  for (TuneProfile& each : problem.profiles) {
    each.profile.values[1].consumers.push_back(3);
    each.profile.values[1].bytes = 1e6;  // more than the outputs
  }
  const double with = peak();
  Plan lowered = Lower(order, MakeStageGraph(problem.manifest, conf));  // with sends and receives
  const Costs costs = CostsOfConf(problem, On(problem, 2), conf);
  EXPECT_EQ(
      PredictOrder({problem, On(problem, 2), conf, costs, lowered}, kForwardOnly, {}).peak_bytes[0],
      with);
  EXPECT_GE(with - without, most * 1e6 - 3e5) << "3e5: for outputs, which take more without";
  EXPECT_LE(with - without, (most + 2) * 1e6) << "2: it is also made and read";
}

// The reads begin with the pass, and the last module computes after the last of them.
TEST(ForwardOnly, WeightsAreReadOnceAPass) {
  TuneProblem problem = FourModules(4);
  Conf conf = {{0, 1, 2, 3}, false, {{0}, {0}, {0}, {0}}, {}};
  conf.offloaded_stages = {0, 1, 2, 3};
  const double compute = 4 * kForward;
  problem.disk = kWeights / (2 * compute);
  const TuneCandidate slow = Predict(problem, On(problem, 1), conf, kForwardOnly, 4, {});
  EXPECT_NEAR(slow.step, 4 * 2 * compute + compute, 1e-9);
  EXPECT_EQ(WhatBinds(problem, slow), "disk");
  double last = 0;
  for (const TraceAction& each : TimelineOf(problem, slow)) last = std::max(last, each.end);
  EXPECT_NEAR(last, slow.step * 1e6, 1e-3) << "the timeline waits for the disk, too";
  // Two slots, a module that computes, the values between two modules, and the outputs.
  EXPECT_EQ(slow.peak_bytes[0], 2 * kWeights + kPeak + 4 * kValue + 4 * kValue);
  problem.disk = 1e18;
  const TuneCandidate fast = Predict(problem, On(problem, 1), conf, kForwardOnly, 4, {});
  EXPECT_NEAR(fast.step, 4 * compute, 1e-9);
  EXPECT_EQ(WhatBinds(problem, fast), "compute");
}

TEST(ForwardOnly, RanksShareTheDisk) {
  TuneProblem problem = FourModules(4);
  problem.disk = 1e6;
  Conf conf = {{0, 1, 2, 3}, false, {{0}, {0}, {1}, {1}}, {}};
  conf.offloaded_stages = {0, 1};
  EXPECT_DOUBLE_EQ(CostsOfConf(problem, On(problem, 2), conf).disk.bandwidth, 1);
  conf.offloaded_stages = {0, 1, 2, 3};
  EXPECT_DOUBLE_EQ(CostsOfConf(problem, On(problem, 2), conf).disk.bandwidth, 0.5);
}

TEST(ForwardOnly, ModulesAreOnDiskOnlyWhereTheyDoNotFit) {
  TuneProblem problem = FourModules(4);
  for (TuneProfile& each : problem.profiles) each.profile.nodes[1].parameters = kWeights / 4;
  for (TuneProfile& each : problem.profiles) each.profile.nodes[2].parameters = kWeights / 4;
  for (TuneProfile& each : problem.profiles) each.profile.nodes[3].parameters = kWeights / 4;
  const double values = kPeak + 4 * kValue + 4 * kValue;
  problem.memory = kWeights + 2 * kWeights / 4 + values;
  const Conf one = {{0, 0, 0, 0}, false, {{0}}, {}};
  const Conf found = WithWeightsOnDisk(problem, On(problem, 1), one, 4);
  EXPECT_EQ(found.module_to_stage, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(found.offloaded_stages, (std::vector<int>{1, 2, 3}));
  EXPECT_TRUE(Fits(problem, Predict(problem, On(problem, 1), found, kForwardOnly, 4, {})));
  problem.memory -= 1;
  EXPECT_EQ(WithWeightsOnDisk(problem, On(problem, 1), one, 4).offloaded_stages,
            (std::vector<int>{0, 1, 2, 3}))
      << "nothing fits";
}

TEST(ForwardOnly, TheSearchFindsWhatFits) {
  TuneProblem problem = FourModules(4);
  EXPECT_EQ(SearchTune(problem, 1).best.at(0).ranks, 2);
  problem.disk = 1e8;
  problem.memory = 2.5e6;  // two modules
  const TuneCandidate two = SearchTune(problem, 1).best.at(0);
  EXPECT_EQ(two.ranks, 2);
  EXPECT_EQ(two.schedule, kForwardOnly);
  EXPECT_TRUE(two.conf.offloaded_stages.empty());
  std::erase_if(problem.profiles, [](const TuneProfile& each) { return each.ranks > 1; });
  const TuneCandidate one = SearchTune(problem, 1).best.at(0);
  EXPECT_EQ(one.conf.offloaded_stages.size(), 4u);
  EXPECT_LE(one.peak_bytes[0], problem.memory);
  problem.memory = 1e6;
  EXPECT_TRUE(SearchTune(problem, 1).best.empty());
  const TuneNeeds needs = FindNeeds(problem);
  EXPECT_GT(needs.memory, 2 * kWeights);
  EXPECT_LT(needs.memory, 2.2 * kWeights) << "two slots and values";
  problem.memory = needs.memory;
  EXPECT_FALSE(SearchTune(problem, 1).best.empty());
}

}  // namespace
}  // namespace pipewright
