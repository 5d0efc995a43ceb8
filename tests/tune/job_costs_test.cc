// The costs of loss and optimizer are what is left of a run without its modules.
#include "tune/job_costs.h"

#include <gtest/gtest.h>

#include "base/json.h"

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

// For 4 samples, the modules take 8 and 16 ms; the run takes 9 and 15.5.
TEST(TuneJobCosts, AreTheRest) {
  TuneProblem problem;
  problem.profiles = {ProfileOf(1, 1, 4), ProfileOf(2, 1, 8), ProfileOf(1, 2, 4)};
  const Json figures =
      ParseJson(R"({"stages": [{"costs": {"F": 9000, "B": 15500, "step": 400}}]})", "bench");
  SetJobCosts(figures, 1, 4, problem);
  EXPECT_NEAR(problem.profiles[0].loss_forward, 1e-3, 1e-12);
  EXPECT_EQ(problem.profiles[0].loss_backward, 0);
  EXPECT_NEAR(problem.profiles[0].step_per_byte, 2e-6, 1e-15);
  EXPECT_NEAR(problem.profiles[1].loss_forward, 2e-3, 1e-12) << "twice the samples";
  EXPECT_NEAR(problem.profiles[1].step_per_byte, 2e-6, 1e-15);
  EXPECT_EQ(problem.profiles[2].loss_forward, 0) << "other threads";
}

}  // namespace
}  // namespace pipewright
