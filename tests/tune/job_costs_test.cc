// The costs of loss and optimizer are what is left of a run without its modules.
#include "tune/job_costs.h"

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

Json Figures(double forward, double backward, double step) {
  return {{"stages",
           {{{"costs", {{"F", forward}, {"B", backward}, {"step", step}}},
             {"loss", {{"kept", 40}, {"peak", 100}}}}}}};
}

// For 4 samples, the modules take 8 and 16 ms; the run takes 9 and 15.5.
TEST(TuneJobCosts, AreTheRest) {
  TuneProblem problem;
  problem.profiles = {ProfileOf(1, 1, 4), ProfileOf(2, 1, 8), ProfileOf(1, 2, 4)};
  SetJobCosts({{4, Figures(9000, 15500, 400)}}, 1, problem);
  EXPECT_NEAR(problem.profiles[0].loss_forward, 1e-3, 1e-12);
  EXPECT_EQ(problem.profiles[0].loss_backward, 0);
  EXPECT_NEAR(problem.profiles[0].step_per_byte, 2e-6, 1e-15);
  EXPECT_NEAR(problem.profiles[1].loss_forward, 2e-3, 1e-12) << "twice the samples";
  EXPECT_NEAR(problem.profiles[1].step_per_byte, 2e-6, 1e-15);
  EXPECT_EQ(problem.profiles[2].loss_forward, 0) << "other threads";
}

// A loss of 0.8 ms for each microbatch and 0.05 ms for each sample.
TEST(TuneJobCosts, LossesTakeTimeForEachMicrobatch) {
  TuneProblem problem;
  for (int64_t size : {1, 4, 8, 16}) problem.profiles.push_back(ProfileOf(1, 1, size));
  SetJobCosts({{4, Figures(9000, 17000, 400)}, {16, Figures(33600, 65600, 200)}}, 1, problem);
  for (const auto& [at, loss] :
       {std::pair<size_t, double>{0, 0.85e-3}, {1, 1e-3}, {2, 1.2e-3}, {3, 1.6e-3}}) {
    EXPECT_NEAR(problem.profiles[at].loss_forward, loss, 1e-12);
    EXPECT_NEAR(problem.profiles[at].loss_backward, loss, 1e-12);
    EXPECT_NEAR(problem.profiles[at].step_per_byte, at < 3 ? 2e-6 : 1e-6, 1e-15);
  }
}

// Modules keep 100 bytes of a sample each, and their backward takes 105 or 150 bytes of a sample.
// The loss takes its 100 bytes when all modules of its stage still hold theirs.
TEST(TuneJobCosts, LossesTakeMemory) {
  TuneProblem problem;
  problem.manifest.modules.resize(2);
  for (int64_t size : {4, 8}) problem.profiles.push_back(ProfileOf(1, 1, size));
  SetJobCosts({{4, Figures(9000, 17000, 400)}}, 1, problem);
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
    EXPECT_EQ(costs.stages[0].activation, 400) << "has no loss";
    EXPECT_EQ(costs.stages[0].peak.B, 4 * of_sample);
    EXPECT_EQ(costs.stages[1].activation, 440);
    EXPECT_EQ(costs.stages[1].peak.B, peak);
    EXPECT_EQ(costs.stages[1].recompute_peak.B, peak);
  }
}

}  // namespace
}  // namespace pipewright
