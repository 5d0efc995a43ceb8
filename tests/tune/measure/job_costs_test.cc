// The costs of a job come from steps with all modules in one stage.
#include "tune/measure/job_costs.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "formats/conf.h"
#include "plan/tune/predict.h"

namespace pipewright {
namespace {

TuneProfile ProfileOf(int ranks, int threads, int64_t size) {
  TuneProfile made;
  made.ranks = ranks;
  made.profile.threads = threads;
  made.profile.microbatch = size;
  for (int m = 0; m < 2; ++m) {
    ProfileNode node;
    node.forward.median = 1e-3 * static_cast<double>(size);
    node.backward.median = 2e-3 * static_cast<double>(size);
    node.trained = 100;
    made.profile.nodes.push_back(node);
  }
  return made;
}

// Times in microseconds.
Json Figures(double forward, double backward, double step, double loss) {
  return {{"ranks", Json::array({Json::object({{"busy", 1000}})})},
          {"stages",
           {{{"actions", Json::object()},
             {"costs", {{"F", forward}, {"B", backward}, {"step", step}}},
             {"loss", {{"kept", 40}, {"peak", 100}, {"F", loss}, {"B", 2 * loss}}}}}}};
}

double ForwardOf(const TuneProfile& profile) {
  double sum = 0;
  for (const ProfileNode& node : profile.profile.nodes) sum += node.forward.median;
  return sum;
}

double BackwardOf(const TuneProfile& profile) {
  double sum = 0;
  for (const ProfileNode& node : profile.profile.nodes) sum += node.backward.median;
  return sum;
}

// With 8 ranks, replicas have up to 2 of 16 samples: a line through 1 and 2 does not tell about 16.
TEST(TuneJobCosts, HaveTwoSizesIfThoseAreEnough) {
  using Sizes = std::vector<int64_t>;
  auto sizes = [](int ranks, int64_t own, int64_t samples) {
    Job job;
    job.microbatch_size = own, job.microbatches = static_cast<int>(samples / own);
    TuneProblem problem;
    for (int64_t size = 1; size <= samples; size *= 2)
      problem.profiles.push_back(ProfileOf(ranks, 1, size));
    return SizesOfCosts(job, problem, {1, ranks});
  };
  EXPECT_EQ(sizes(1, 1, 16), (Sizes{1, 16, 16}));
  EXPECT_EQ(sizes(2, 1, 16), (Sizes{1, 8, 8}));
  EXPECT_EQ(sizes(4, 1, 16), (Sizes{1, 4, 16}));
  EXPECT_EQ(sizes(8, 1, 16), (Sizes{1, 2, 16}));
  EXPECT_EQ(sizes(2, 8, 16), (Sizes{8, 8, 16}));
  EXPECT_EQ(sizes(4, 16, 16), (Sizes{16, 4, 16}));
}

// For 4 samples, the modules take 8 and 16 ms in the profile; in steps, forwards take 10 % more,
// and backwards 5 % less.
TEST(TuneJobCosts, AreMeasuredInSteps) {
  TuneProblem problem;
  problem.profiles = {ProfileOf(1, 1, 4), ProfileOf(1, 1, 8), ProfileOf(1, 2, 4),
                      ProfileOf(2, 1, 4)};
  const std::vector<TuneProfile> profiles = problem.profiles;
  SetJobCosts({{4, Figures(9800, 17200, 400, 1000)}}, {1, 1}, profiles, problem);
  EXPECT_NEAR(problem.profiles[0].loss_forward, 1e-3, 1e-12);
  EXPECT_NEAR(problem.profiles[0].loss_backward, 2e-3, 1e-12);
  EXPECT_NEAR(ForwardOf(problem.profiles[0]), 1.1 * 8e-3, 1e-9);
  EXPECT_NEAR(BackwardOf(problem.profiles[0]), 16e-3, 1e-9) << "a disturbed profile";
  EXPECT_NEAR(problem.profiles[0].step_per_byte, 2e-6, 1e-15);
  EXPECT_NEAR(problem.profiles[1].loss_forward, 2e-3, 1e-12) << "twice the samples";
  EXPECT_NEAR(ForwardOf(problem.profiles[1]), 16e-3 + 0.8e-3, 1e-9) << "weights are read anew";
  EXPECT_NEAR(problem.profiles[1].step_per_byte, 2e-6, 1e-15);
  EXPECT_EQ(problem.profiles[2].loss_forward, 0) << "other threads";
  EXPECT_EQ(problem.profiles[3].loss_forward, 0) << "other ranks";
}

// A loss of 0.8 ms for each microbatch and 0.05 ms for each sample.
TEST(TuneJobCosts, LossesTakeTimeForEachMicrobatch) {
  TuneProblem problem;
  for (int64_t size : {1, 4, 8, 16}) problem.profiles.push_back(ProfileOf(1, 1, size));
  const std::vector<TuneProfile> profiles = problem.profiles;
  SetJobCosts({{4, Figures(9000, 18000, 400, 1000)}, {16, Figures(33600, 67200, 200, 1600)}},
              {1, 1}, profiles, problem);
  for (const auto& [at, loss] :
       {std::pair<size_t, double>{0, 0.85e-3}, {1, 1e-3}, {2, 1.2e-3}, {3, 1.6e-3}}) {
    EXPECT_NEAR(problem.profiles[at].loss_forward, loss, 1e-12);
    EXPECT_NEAR(problem.profiles[at].loss_backward, 2 * loss, 1e-12);
    EXPECT_NEAR(ForwardOf(problem.profiles[at]),
                2e-3 * static_cast<double>(problem.profiles[at].profile.microbatch), 1e-9);
    EXPECT_NEAR(problem.profiles[at].step_per_byte, at < 3 ? 2e-6 : 1e-6, 1e-15);
  }
}

// Two replicas send half of 200 bytes twice: 2 * (10 + 100 / 50) = 24 us. They take 36, of which
// one rank waits for 6, and the other one also for its peer.
TEST(TuneJobCosts, ReplicasExchangeMoreSlowlyThanLinks) {
  TuneProblem problem;
  problem.manifest.modules.resize(2);
  std::vector<TuneProfile> profiles = {ProfileOf(2, 1, 4), ProfileOf(2, 1, 8), ProfileOf(1, 1, 4)};
  for (TuneProfile& each : profiles) {
    each.profile.links = {{0, 1, 10e-6, 50e6, 0}, {1, 0, 10e-6, 50e6, 0}};
    for (int m = 0; m < 2; ++m) each.profile.nodes[static_cast<size_t>(m)].module = m;
  }
  problem.profiles = profiles;
  Json figures = Figures(9800, 18000, 400, 1000);
  figures["ranks"] = {{{"waited", 6}, {"busy", 1000}}, {{"waited", 500}, {"busy", 900}}};
  figures["stages"][0]["actions"]["REDUCE_GRAD"] = {{"typical", 30}};
  SetJobCosts({{4, figures}}, {1, 2}, profiles, problem);
  EXPECT_NEAR(problem.profiles[0].exchange, 1.5, 1e-12);
  EXPECT_NEAR(problem.profiles[1].exchange, 1.5, 1e-12);
  EXPECT_NEAR(ForwardOf(problem.profiles[0]), 1.1 * 8e-3, 1e-9);
  EXPECT_EQ(problem.profiles[2].exchange, 1);
  Conf conf = GroupModules(2, 1);
  conf.stage_to_ranks = {{0, 1}};
  const TuneCandidate slow = Predict(problem, problem.profiles[0], conf, "1f1b", 2, {});
  problem.profiles[0].exchange = 1;
  const TuneCandidate fast = Predict(problem, problem.profiles[0], conf, "1f1b", 2, {});
  EXPECT_NEAR(slow.step - fast.step, 12e-6, 1e-12);
}

// The times are those of the first rank; the second one takes 10 % longer.
TEST(TuneJobCosts, ReplicasWaitForTheSlowest) {
  TuneProblem problem;
  problem.profiles = {ProfileOf(2, 1, 4)};
  const std::vector<TuneProfile> profiles = problem.profiles;
  Json figures = Figures(9000, 18000, 400, 1000);
  figures["ranks"] = {{{"busy", 1000}}, {{"busy", 1100}}};
  SetJobCosts({{4, figures}}, {1, 2}, profiles, problem);
  EXPECT_NEAR(ForwardOf(problem.profiles[0]), 8.9e-3, 1e-9);
  EXPECT_NEAR(BackwardOf(problem.profiles[0]), 17.8e-3, 1e-9);
}

// A shape without figures of its own would seem to be faster than those that have some.
TEST(TuneJobCosts, OthersLendTheirs) {
  TuneProblem problem;
  problem.profiles = {ProfileOf(1, 2, 4), ProfileOf(2, 1, 4)};
  problem.profiles[0].profile.nodes[0].forward.median = 1e-3;
  const std::vector<TuneProfile> profiles = problem.profiles;
  Json figures = Figures(9800, 17200, 400, 1000);
  figures["ranks"] = {{{"busy", 1000}}, {{"busy", 1000}}};
  EXPECT_TRUE(SetJobCosts({{4, figures}}, {2, 1}, profiles, problem, TuneShape{1, 2}));
  // Modules by themselves take 5 ms, not 8.
  EXPECT_NEAR(problem.profiles[0].loss_forward, 5. / 8 * 1e-3, 1e-12);
  EXPECT_NEAR(problem.profiles[0].step_per_byte, 5. / 8 * 2e-6, 1e-15);
  EXPECT_NEAR(ForwardOf(problem.profiles[0]), 1.1 * 5e-3, 1e-9);
  EXPECT_EQ(problem.profiles[1].loss_forward, 0);
  figures["ranks"].erase(1);  // one rank says nothing of the slowdown of two
  EXPECT_FALSE(SetJobCosts({{4, figures}}, {2, 1}, profiles, problem, TuneShape{1, 2}));
}

// On other machines, profiles of all numbers of ranks are those of one rank.
TEST(TuneJobCosts, OneRankTellsOfOtherMachines) {
  TuneProblem problem;
  problem.machines.speeds = {1, 2};
  problem.profiles = {ProfileOf(2, 1, 4)};
  const std::vector<TuneProfile> profiles = problem.profiles;
  SetJobCosts({{4, Figures(9800, 18000, 400, 1000)}}, {1, 2}, profiles, problem);
  EXPECT_NEAR(ForwardOf(problem.profiles[0]), 1.1 * 8e-3, 1e-9);
}

// A run on one rank says nothing of the times that two busy ranks take, but of the loss.
TEST(TuneJobCosts, OneRankTellsNothingOfTwo) {
  TuneProblem problem;
  problem.profiles = {ProfileOf(2, 1, 4)};
  const std::vector<TuneProfile> profiles = problem.profiles;
  SetJobCosts({{4, Figures(5000, 9000, 400, 1000)}}, {1, 2}, profiles, problem);
  EXPECT_NEAR(ForwardOf(problem.profiles[0]), 8e-3, 1e-9);
  EXPECT_NEAR(problem.profiles[0].loss_forward, 1e-3, 1e-12);
  EXPECT_NEAR(problem.profiles[0].step_per_byte, 2e-6, 1e-15);
}

// Forwards take 1 ms longer with microbatches of 4 samples, and 3 ms with 16: smaller ones take
// proportionally less, and larger ones no more.
TEST(TuneJobCosts, SlowdownsAreInterpolated) {
  TuneProblem problem;
  for (int64_t size : {1, 4, 10, 16, 32}) problem.profiles.push_back(ProfileOf(1, 1, size));
  const std::vector<TuneProfile> profiles = problem.profiles;
  SetJobCosts({{4, Figures(10000, 18000, 400, 1000)}, {16, Figures(36600, 67200, 200, 1600)}},
              {1, 1}, profiles, problem);
  const double longer[] = {0.25e-3, 1e-3, 2e-3, 3e-3, 3e-3};
  for (size_t at = 0; at < profiles.size(); ++at)
    EXPECT_NEAR(ForwardOf(problem.profiles[at]), ForwardOf(profiles[at]) + longer[at], 1e-9) << at;
}

// Modules keep 100 bytes of a sample each, and their backward takes 105 or 150 bytes of a sample.
// The loss takes its 100 bytes when all modules of its stage still hold theirs.
TEST(TuneJobCosts, LossesTakeMemory) {
  TuneProblem problem;
  problem.manifest.modules.resize(2);
  for (int64_t size : {4, 8}) problem.profiles.push_back(ProfileOf(1, 1, size));
  const std::vector<TuneProfile> profiles = problem.profiles;
  SetJobCosts({{4, Figures(9000, 18000, 400, 1000)}}, {1, 1}, profiles, problem);
  EXPECT_EQ(problem.profiles[0].loss_kept, 40);
  EXPECT_EQ(problem.profiles[0].loss_peak, 100);
  EXPECT_EQ(problem.profiles[1].loss_kept, 80) << "twice the samples";
  for (const auto& [of_sample, peak] : {std::pair<double, double>{105, 500}, {150, 600}}) {
    TuneProfile profile = problem.profiles[0];
    for (int m = 0; m < 2; ++m) {
      ProfileNode& node = profile.profile.nodes[static_cast<size_t>(m)];
      node.module = m;
      node.kept = 400;
      node.peak = 4 * of_sample;
    }
    const Costs costs = CostsOfConf(problem, profile, GroupModules(2, 2));
    EXPECT_NEAR(costs.stages[0].F, 4000, 1e-6);
    EXPECT_NEAR(costs.stages[0].B, 8000, 1e-6);
    EXPECT_NEAR(costs.stages[1].F, 5000, 1e-6);
    EXPECT_NEAR(costs.stages[1].B, 10000, 1e-6);
    EXPECT_EQ(costs.stages[0].activation, 400) << "has no loss";
    EXPECT_EQ(costs.stages[0].peak.B, 4 * of_sample);
    EXPECT_EQ(costs.stages[1].activation, 440);
    EXPECT_EQ(costs.stages[1].peak.B, peak);
    EXPECT_EQ(costs.stages[1].recompute_peak.B, peak);
  }
}

}  // namespace
}  // namespace pipewright
