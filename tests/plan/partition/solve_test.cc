#include "plan/partition/solve.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "base/files/read_file.h"
#include "base/json.h"
#include "plan/partition/fast/lower_bound.h"
#include "plan/partition/pipedream/tarnawski.h"
#include "tests/plan/partition/brute_force.h"

namespace pipewright {

static const std::string kData = TEST_DIR "/data/partition/tarnawski2020/";

static PartitionProblem Load(const std::string& instance) {
  std::string path = kData + instance;
  return ReadTarnawski(ReadJson(path), path);
}

TEST(Partition, CertifiedOptimaOfTarnawski) {
  for (const Json& row : ReadJson(kData + "optima.json")) {
    PartitionProblem problem = Load(row["instance"]);
    PartitionResult result = SolvePartition(problem, {});
    double expected = row["best_known_contiguous_optimum"];
    EXPECT_NEAR(result.objective, expected, 1e-6 * expected) << row["instance"];
    EXPECT_TRUE(result.proven);
    EXPECT_EQ(result.lower_bound, result.objective);
    EXPECT_EQ(CheckPartition(problem, result), "");
  }
}

TEST(Partition, CertifiedOptimaWithoutCpusAndUnderMemoryLimits) {
  for (const Json& row : ReadJson(kData + "variants_gpu_only.json")) {
    PartitionProblem problem = Load(row["instance"].get<std::string>() + ".json");
    problem.devices[0].count = row["k"];
    problem.devices[0].memory_bytes = row["maxSizePerFPGA"];
    problem.devices[1].count = 0;
    PartitionResult result = SolvePartition(problem, {});
    EXPECT_TRUE(result.proven) << row;
    EXPECT_EQ(result.feasible, row["opt"].is_number()) << row;
    if (!result.feasible) continue;
    double expected = row["opt"];
    EXPECT_NEAR(result.objective, expected, 1e-6 * expected) << row;
    EXPECT_EQ(CheckPartition(problem, result), "") << row;
  }
}

// A fixed number of stages, fewer than devices, in a graph with many nodes without compute: the
// search skips sets that the remaining stages cannot hold, and joins those nodes.
TEST(Partition, CertifiedOptimaOfAGivenNumberOfStages) {
  PartitionProblem problem = Load("LayerGraphs/gnmt_inference.json");
  double before = kInfinity;
  for (int stages : {2, 3, 4}) {
    problem.stages = stages;
    SolveOptions options;
    options.max_sets = 200'000;
    PartitionResult result = SolvePartition(problem, options);
    EXPECT_TRUE(result.proven) << stages;
    EXPECT_EQ(CheckPartition(problem, result), "") << stages;
    EXPECT_LT(result.objective, before) << stages;
    before = result.objective;
  }
}

TEST(Partition, ReplicasShareTheMicrobatchesInFlight) {
  PartitionProblem problem;
  problem.microbatches = 4;
  problem.in_flight = InFlight::k1F1B;
  EXPECT_EQ(InFlightCount(problem, 1, 1), 2);
  EXPECT_EQ(InFlightCount(problem, 1, 8), 4);
  EXPECT_EQ(InFlightCount(problem, 2, 1), 2);
  EXPECT_EQ(InFlightCount(problem, 2, 8), 2);
  EXPECT_EQ(InFlightCount(problem, 3, 8), 2);
  problem.in_flight = InFlight::kGPipe;
  EXPECT_EQ(InFlightCount(problem, 3, 0), 2);
}

// A CPU's share is bounded in the order of the device time that its nodes save; nodes without cost
// have no place in that order.
TEST(Partition, NodesWithoutCostBesideACpu) {
  std::mt19937 random(5617);
  int features = static_cast<int>(random() % 512);
  PartitionProblem problem = RandomProblem(random, 12, features);
  double expected = BruteForceOptimum(problem);
  PartitionResult result = SolvePartition(problem, {});
  EXPECT_TRUE(result.proven);
  EXPECT_NEAR(result.objective, expected, 1e-9 * (1 + expected));
}

// A node without work joins its neighbor in the search for the best; the next best may separate
// them.
TEST(Partition, NextBestMaySeparateWhatTheBestJoins) {
  PartitionProblem problem;
  problem.nodes.resize(2);
  problem.nodes[0].device_time = 4;
  problem.values.push_back({0, {1}, 7, 1, 0});
  problem.devices.resize(1);
  problem.devices[0].count = 2;
  for (bool exact : {true, false}) {
    PartitionResult result = SolvePartition(problem, {exact});
    ASSERT_EQ(result.objective, 4);
    Explanation explanation = ExplainPartition(problem, result, {exact});
    EXPECT_EQ(explanation.next_best, 11);
    EXPECT_TRUE(explanation.next_best_proven);
  }
}

TEST(Partition, ExactAgreesWithBruteForce) {
  bool thorough = std::getenv("PIPEWRIGHT_LONG") != nullptr;
  int cases = thorough ? 20000 : 500, feasible = 0;
  for (int seed = 0; seed < cases; ++seed) {
    std::mt19937 random(seed);
    int features = seed % 4 == 0 ? 0 : static_cast<int>(random() % 512);
    int nodes = features & 256 ? 4 : features & (8 | 32) ? 5 : thorough ? 12 : 8;
    PartitionProblem problem = RandomProblem(random, nodes, features);
    double expected = BruteForceOptimum(problem);
    PartitionResult result = SolvePartition(problem, {});
    ASSERT_TRUE(result.proven) << seed;
    ASSERT_EQ(result.feasible, expected < kInfinity) << seed << " features " << features;
    if (!result.feasible) continue;
    ++feasible;
    ASSERT_NEAR(result.objective, expected, 1e-9 * (1 + expected))
        << seed << " features " << features;
    ASSERT_EQ(CheckPartition(problem, result), "") << seed;
    PartitionResult fast = SolvePartition(problem, {false});
    if (fast.feasible) {
      ASSERT_EQ(CheckPartition(problem, fast), "") << seed;
      ASSERT_GE(fast.objective, expected * (1 - 1e-9)) << seed;
    }
    ASSERT_LE(fast.lower_bound, expected * (1 + 1e-9)) << seed;
    ASSERT_LE(PartitionLowerBound(problem, BuildUnits(problem, ExactMerge(problem))),
              expected * (1 + 1e-9))
        << seed << " features " << features;
  }
  EXPECT_GT(feasible, cases / 2);
}

}  // namespace pipewright
