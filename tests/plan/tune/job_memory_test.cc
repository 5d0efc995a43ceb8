// The memory of gradients and optimizer state in profiles.
#include "plan/tune/job_memory.h"

#include <gtest/gtest.h>

namespace pipewright {
namespace {

WeightInfo Weight(const std::string& name, const std::string& dtype, bool trained) {
  WeightInfo info;
  info.name = name, info.dtype = dtype, info.shape = {5, 2};
  info.requires_grad = trained;
  return info;
}

// Two modules: 40 trained and 40 frozen bytes, and 20 bytes in 16 bits.
TuneProblem Problem() {
  TuneProblem problem;
  problem.manifest.modules.resize(2);
  problem.manifest.modules[0].held = {Weight("a", "float32", true), Weight("b", "float32", false)};
  problem.manifest.modules[1].held = {Weight("c", "bfloat16", true)};
  problem.profiles.resize(1);
  for (int m : {0, 1}) {
    ProfileNode node;
    node.module = m;
    node.parameters = node.trained = m == 0 ? 80 : 20;  // as the package is
    node.peak = 1000;
    problem.profiles[0].profile.nodes.push_back(node);
  }
  return problem;
}

void Expect(const TuneProblem& problem, int module, double trained, double state) {
  const ProfileNode& node = problem.profiles[0].profile.nodes[static_cast<size_t>(module)];
  EXPECT_EQ(node.trained, trained);
  EXPECT_EQ(node.buffers, state);
  EXPECT_EQ(node.peak, 1000 + state);
  EXPECT_EQ(node.parameters, module == 0 ? 80 : 20);
}

TEST(TuneJobMemory, FrozenParametersHaveNone) {
  TuneProblem problem = Problem();
  Job job;
  job.optimizer.kind = OptimizerJob::kAdamW;
  CountOptimizer(job, problem);
  Expect(problem, 0, 40, 80);
  Expect(problem, 1, 20, 40);
}

// If the job leaves the body open, any module may be a list when it runs.
TEST(TuneJobMemory, ChecksOfListsCountUnderALimit) {
  struct Case {
    std::optional<BodyChoice> body;
    const char *measured, *device;
    double limit;
    bool counts, can_change;
  };
  using enum BodyChoice;
  for (const Case& c : std::vector<Case>{{{}, "lists", "", 1e9, true, true},
                                         {{}, "autograd", "cpu", 1e9, true, true},
                                         {{}, "lists", "", kNoLimit, false, false},
                                         {{}, "lists", "cuda", 1e9, false, false},
                                         {kAuto, "autograd", "", 1e9, true, false},
                                         {kLists, "lists", "", 1e9, true, false},
                                         {kAutograd, "autograd", "", 1e9, false, false}}) {
    TuneProblem problem = Problem();
    Job job;
    job.body = c.body, job.device = c.device;
    ProfileNode& node = problem.profiles[0].profile.nodes[0];
    node.body = c.measured, node.kept = 7;
    problem.memory = c.limit;
    CountOptimizer(job, problem);
    EXPECT_EQ(node.peak, 1000 + node.buffers + (c.counts ? 40 : 0)) << c.measured << c.device;
    const std::vector<double>& checks = problem.profiles[0].checks;
    EXPECT_EQ(checks.empty() ? 0 : checks[0], c.counts ? 7 : 0) << c.measured << c.device;
    EXPECT_EQ(UseAutograd(job, problem), c.can_change) << c.measured << c.device;
    if (!c.can_change) continue;
    EXPECT_FALSE(UseAutograd(job, problem));
    EXPECT_EQ(node.peak, 1000 + node.buffers);
    EXPECT_EQ(problem.profiles[0].body, "autograd");
  }
}

TEST(TuneJobMemory, ModulesThatWillBeOneAreCheckedTogether) {
  TuneProblem problem = Problem();
  problem.merges = true, problem.memory = 1e9;
  problem.profiles[0].profile.nodes[0].kept = 7;
  CountOptimizer(Job(), problem);
  EXPECT_EQ(problem.profiles[0].checks, (std::vector<double>{7 + 40, 20}));
  Expect(problem, 0, 40, problem.profiles[0].profile.nodes[0].buffers);  // peaks are without them
  ASSERT_TRUE(UseAutograd(Job(), problem));
  EXPECT_TRUE(problem.profiles[0].checks.empty());
  Expect(problem, 0, 40, problem.profiles[0].profile.nodes[0].buffers);
}

TEST(TuneJobMemory, GradientsOfARank) {
  Conf conf = GroupModules(2, 2);
  EXPECT_EQ(GradientBytes(Job(), Problem(), conf, 0), 40);
  EXPECT_EQ(GradientBytes(Job(), Problem(), conf, 1), 20);
  conf.stage_to_ranks = {{0}, {0}};
  EXPECT_EQ(GradientBytes(Job(), Problem(), conf, 0), 60);
}

TEST(TuneJobMemory, SumsOfEarlierMinibatches) {
  TuneProblem problem = Problem();
  Job job;
  job.accumulate = 2;  // SGD without momentum
  CountOptimizer(job, problem);
  Expect(problem, 0, 40, 40);
  Expect(problem, 1, 20, 20);
}

TEST(TuneJobMemory, CopiesOf16BitParametersAndStateOnDisk) {
  TuneProblem problem = Problem();
  Job job;
  job.optimizer.kind = OptimizerJob::kAdamW;
  job.optimizer.master_weights = true;
  CountOptimizer(job, problem);
  Expect(problem, 0, 40, 80);
  Expect(problem, 1, 40, 80 + 40);
  problem = Problem();
  job.optimizer.state_on_disk = true;
  CountOptimizer(job, problem);
  Expect(problem, 0, 40, 0);
}

}  // namespace
}  // namespace pipewright
