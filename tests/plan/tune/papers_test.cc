// On the costs that papers publish, the search finds a step at least as short as that of the
// paper's own schedule in the same memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "base/files/read_file.h"
#include "base/json.h"
#include "plan/schedules/schedule.h"
#include "plan/search/zb_auto.h"
#include "plan/tune/predict.h"
#include "plan/tune/search.h"
#include "tests/plan/tune/chain.h"

namespace pipewright {
namespace {

struct PaperCosts {
  int ranks = 1, microbatches = 1;
  double F = 1, I = 1, W = 1;      // seconds, of the work of one rank for one microbatch
  double kept = 1e6, for_W = 5e5;  // bytes
  double weights = 0;              // bytes of a rank, and of its gradients
  double latency = 0;
  double overlap = 1;  // of a forward and a backward: their time, divided by F + I + W
};

// A chain of `per_rank` equal modules for each rank.
TuneProblem PaperProblem(const PaperCosts& paper, int per_rank) {
  const int modules = per_rank * paper.ranks;
  TuneProblem problem = ProblemOf(std::vector<double>(static_cast<size_t>(modules), 1), 1);
  Profile profile = problem.profiles[0].profile;
  for (ProfileNode& node : profile.nodes) {
    node.forward.median = paper.F / per_rank;
    node.input_gradient.median = paper.I / per_rank;
    node.weight_gradient.median = paper.W / per_rank;
    node.backward.median = (paper.I + paper.W) / per_rank;
    node.kept = paper.kept / per_rank;
    node.kept_for_weight = paper.for_W / per_rank;
    node.parameters = node.trained = paper.weights / per_rank;
  }
  for (ProfileValue& value : profile.values) value.bytes = 0;
  for (int a = 0; a < paper.ranks && paper.latency > 0; ++a)
    for (int b = 0; b < paper.ranks; ++b)
      if (a != b) profile.links.push_back({a, b, paper.latency, 1e12, 0});
  if (paper.overlap < 1) {
    const auto ranks = static_cast<size_t>(paper.ranks);
    problem.machines.speeds.assign(ranks, 1);
    problem.machines.overlap.assign(ranks, paper.overlap);
    problem.machines.machine.assign(ranks, 0);
    problem.machines.within = {{0, 0, paper.latency, kNoLimit, 0}};
  }
  problem.samples = problem.microbatches = paper.microbatches;
  problem.microbatch_size = 1;
  problem.profiles = {{paper.ranks, profile}};
  problem.replicas = false;  // papers compare schedules of one copy of the model
  problem.recompute = false;
  return problem;
}

// Expects a step at least as short as that of the paper's schedule with `per_rank` stages on each
// rank, and as the one that the paper publishes, in the memory of that schedule.
void ExpectAsGood(const PaperCosts& paper, const std::string& schedule, int per_rank,
                  double published = kNoLimit) {
  TuneProblem problem = PaperProblem(paper, per_rank % 2 ? 2 * per_rank : per_rank);
  problem.replicas = schedule == "dualpipe";
  const int stages = per_rank * paper.ranks;
  Conf conf = GroupModules(static_cast<int>(problem.manifest.modules.size()), stages);
  conf.stage_to_ranks = ParsePlacement(DefaultPlacement(schedule), paper.ranks, stages);
  const TuneCandidate own =
      Predict(problem, problem.profiles[0], conf, schedule, paper.microbatches, {});
  problem.memory = LargestPeak(own);
  const TuneResult found = SearchTune(problem, 1);
  ASSERT_FALSE(found.best.empty()) << schedule;
  EXPECT_LE(found.best[0].step, std::min(own.step, published) * (1 + 1e-9))
      << schedule << " " << paper.ranks;
  EXPECT_LE(LargestPeak(found.best[0]), problem.memory);
}

// Expects a step at least as short as that of a long zb-auto search for stages like the paper's, in
// so much memory.
void ExpectAsGoodAsSearched(const PaperCosts& paper, const std::string& placement, int per_rank,
                            double memory) {
  TuneProblem problem = PaperProblem(paper, 2);
  const int stages = per_rank * paper.ranks;
  Conf conf = GroupModules(2 * paper.ranks, stages);
  conf.stage_to_ranks = ParsePlacement(placement, paper.ranks, stages);
  ZbAutoOptions options;
  options.placement = conf.stage_to_ranks;
  options.memory = problem.memory = memory * (1 + 1e-9);
  const ZbAutoResult own = ZbAuto(CostsOfConf(problem, problem.profiles[0], conf), paper.ranks,
                                  stages, paper.microbatches, options);
  const TuneResult found = SearchTune(problem, 1);
  ASSERT_FALSE(found.best.empty()) << placement;
  EXPECT_LE(found.best[0].step, 1e-6 * own.makespan * (1 + 1e-9)) << placement << paper.ranks;
}

PaperCosts PaperOf(const Json& row) {
  PaperCosts paper;
  paper.ranks = row.at("p"), paper.microbatches = row.at("m");
  const auto seconds = [&](const char* key) { return 1e-6 * row.at(key).get<double>(); };
  paper.F = seconds("F"), paper.I = seconds("B"), paper.W = seconds("W");
  paper.latency = seconds("comm");
  paper.kept = row.at("mem_F"), paper.for_W = -row.at("mem_W").get<double>();
  return paper;
}

TEST(TunePapers, ZeroBubbleAndInterleaved) {
  const Json tables = ReadJson(std::string(TEST_DIR) + "/data/schedules/zero_bubble_rows.json");
  ASSERT_GE(tables.at("iclr").size() + tables.at("arxiv").size(), 9u);
  for (const char* table : {"iclr", "arxiv"})
    for (const Json& row : tables.at(table)) {
      const PaperCosts paper = PaperOf(row);
      const auto seconds = [&](const char* key) { return 1e-6 * row.at(key).get<double>(); };
      ExpectAsGood(paper, "zb-h1", 1, seconds("T_ZBH1"));
      ExpectAsGood(paper, "zb-h2", 1, seconds("span_ZBH2"));
      ExpectAsGood(paper, "interleaved", row.at("v_interleave"), seconds("T_I1F1B_exact"));
      ExpectAsGood(paper, "zbv", 2);
    }
}

// ZB-1p, ZB-2p and ZB-V search their orders.
TEST(TunePapers, SearchedZeroBubble) {
  const Json tables = ReadJson(std::string(TEST_DIR) + "/data/schedules/zero_bubble_rows.json");
  for (const char* table : {"iclr", "arxiv"})
    for (const Json& row : tables.at(table)) {
      const PaperCosts paper = PaperOf(row);
      const double once = paper.ranks * paper.kept;
      ExpectAsGoodAsSearched(paper, "loop", 1, once);
      ExpectAsGoodAsSearched(paper, "loop", 1, 2 * once);
      ExpectAsGoodAsSearched(paper, "v", 2, once);
    }
}

TEST(TunePapers, DualPipe) {
  const Json rows =
      ReadJson(std::string(TEST_DIR) + "/data/schedules/dualpipe_vshape.json").at("dualpipe");
  int tried = 0, overlapped = 0;
  for (const Json& row : rows) {
    PaperCosts paper;
    paper.ranks = row.at("PP"), paper.microbatches = row.at("microbatches");
    ++tried;
    paper.F = row.at("F"), paper.I = row.at("I"), paper.W = row.at("W");
    paper.overlap = row.at("FandB").get<double>() / (paper.F + paper.I + paper.W);
    overlapped += paper.overlap < 1;
    paper.weights = 1e8;  // the whole model does not fit on a rank, and each stage fits twice
    ExpectAsGood(paper, "dualpipe", 1, row.at("makespan"));
  }
  EXPECT_GE(tried, 25);
  EXPECT_GE(overlapped, 10);
}

// Two stages a rank, whose times the table gives.
TEST(TunePapers, DualPipeV) {
  const Json rows =
      ReadJson(std::string(TEST_DIR) + "/data/schedules/dualpipe_vshape.json").at("dualpipev");
  EXPECT_GE(rows.size(), 21u);
  for (const Json& row : rows) {
    PaperCosts paper;
    paper.ranks = row.at("ranks"), paper.microbatches = row.at("microbatches");
    paper.F = row.at("F"), paper.I = row.at("I"), paper.W = row.at("W");
    paper.overlap = row.at("FandB").get<double>() / (paper.F + paper.I + paper.W);
    for (double* time : {&paper.F, &paper.I, &paper.W}) *time *= 2;
    ExpectAsGood(paper, "dualpipev", 2, row.at("makespan"));
  }
}

}  // namespace
}  // namespace pipewright
