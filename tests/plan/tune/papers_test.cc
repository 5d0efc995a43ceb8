// On the costs that papers publish, the search finds a step at least as short as that of the
// paper's own schedule in the same memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/files/read_file.h"
#include "base/json.h"
#include "plan/schedules/schedule.h"
#include "plan/tune/predict.h"
#include "plan/tune/search.h"
#include "tests/plan/tune/chain.h"

namespace pipewright {
namespace {

struct PaperCosts {
  int ranks = 1, microbatches = 1;
  double F = 1, I = 1, W = 1;      // seconds, of the work of one rank for one microbatch
  double kept = 1e6, for_W = 5e5;  // bytes
  double latency = 0;
};

// A chain of two equal modules for each rank.
TuneProblem PaperProblem(const PaperCosts& paper) {
  const int modules = 2 * paper.ranks;
  TuneProblem problem = ProblemOf(std::vector<double>(static_cast<size_t>(modules), 1), 1);
  Profile profile = problem.profiles[0].profile;
  for (ProfileNode& node : profile.nodes) {
    node.forward.median = paper.F / 2;
    node.input_gradient.median = paper.I / 2;
    node.weight_gradient.median = paper.W / 2;
    node.backward.median = (paper.I + paper.W) / 2;
    node.kept = paper.kept / 2;
    node.kept_for_weight = paper.for_W / 2;
  }
  for (ProfileValue& value : profile.values) value.bytes = 0;
  for (int a = 0; a < paper.ranks && paper.latency > 0; ++a)
    for (int b = 0; b < paper.ranks; ++b)
      if (a != b) profile.links.push_back({a, b, paper.latency, 1e12, 0});
  problem.samples = problem.microbatches = paper.microbatches;
  problem.microbatch_size = 1;
  problem.profiles = {{paper.ranks, profile}};
  problem.replicas = false;  // papers compare schedules of one copy of the model
  problem.recompute = false;
  return problem;
}

void ExpectAsGood(const PaperCosts& paper, const std::string& schedule) {
  TuneProblem problem = PaperProblem(paper);
  problem.replicas = schedule == "dualpipe";
  const int modules = 2 * paper.ranks, stages = DefaultStages(schedule, paper.ranks);
  Conf conf = GroupModules(modules, stages);
  conf.stage_to_ranks = ParsePlacement(DefaultPlacement(schedule), paper.ranks, stages);
  const TuneCandidate own =
      Predict(problem, problem.profiles[0], conf, schedule, paper.microbatches, {});
  problem.memory = LargestPeak(own);
  const TuneResult found = SearchTune(problem, 1);
  ASSERT_FALSE(found.best.empty()) << schedule;
  EXPECT_LE(found.best[0].step, own.step * (1 + 1e-9)) << schedule << " " << paper.ranks;
  EXPECT_LE(LargestPeak(found.best[0]), problem.memory);
}

TEST(TunePapers, ZeroBubbleAndInterleaved) {
  const Json rows =
      ReadJson(std::string(TEST_DIR) + "/data/schedules/zero_bubble_rows.json").at("iclr");
  ASSERT_GE(rows.size(), 3u);
  for (const Json& row : rows) {
    PaperCosts paper;
    paper.ranks = row.at("p"), paper.microbatches = row.at("m");
    paper.F = 1e-6 * row.at("F").get<double>(), paper.I = 1e-6 * row.at("B").get<double>();
    paper.W = 1e-6 * row.at("W").get<double>();
    paper.latency = 1e-6 * row.at("comm").get<double>();
    paper.kept = row.at("mem_F"), paper.for_W = -row.at("mem_W").get<double>();
    if (paper.ranks > 8) continue;  // seconds
    for (const char* schedule : {"zb-h1", "zb-h2", "interleaved", "zbv"})
      ExpectAsGood(paper, schedule);
  }
}

TEST(TunePapers, DualPipe) {
  const Json rows =
      ReadJson(std::string(TEST_DIR) + "/data/schedules/dualpipe_vshape.json").at("dualpipe");
  int tried = 0;
  for (const Json& row : rows) {
    PaperCosts paper;
    paper.ranks = row.at("PP"), paper.microbatches = row.at("microbatches");
    if (paper.ranks > 4 || ++tried > 3) continue;
    paper.F = row.at("F"), paper.I = row.at("I"), paper.W = row.at("W");
    ExpectAsGood(paper, "dualpipe");
  }
  EXPECT_GE(tried, 3);
}

}  // namespace
}  // namespace pipewright
