// Partitions for devices whose links differ, and compares with all partitions.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"
#include "plan/partition/solve.h"

namespace pipewright {
namespace {

PartitionProblem Chain(std::mt19937& random, int nodes, int devices) {
  auto number = [&](double low, double high) {
    return std::uniform_real_distribution<>(low, high)(random);
  };
  PartitionProblem problem;
  for (int i = 0; i < nodes; ++i) {
    PartitionNode node;
    node.name = std::to_string(i);
    node.device_time = number(1, 3);
    problem.nodes.push_back(node);
    if (i + 1 < nodes) problem.values.push_back({i, {i + 1}, number(0, 2), 2, 0});
  }
  DeviceClass device;
  device.count = devices;
  problem.devices = {device};
  return problem;
}

// Tries every cut of a chain on every order of the devices, with no stage of the nodes `forbidden`.
double BruteForce(const PartitionProblem& problem, const std::vector<int>& forbidden = {}) {
  int nodes = static_cast<int>(problem.nodes.size()), devices = problem.devices[0].count;
  double best = kInfinity;
  for (int cuts = 0; cuts < 1 << (nodes - 1); ++cuts) {
    PartitionResult result;
    result.stages.emplace_back();
    for (int i = 0; i < nodes; ++i) {
      result.stages.back().nodes.push_back(i);
      if (i + 1 < nodes && cuts >> i & 1) result.stages.emplace_back();
    }
    if (static_cast<int>(result.stages.size()) > devices) continue;
    if (std::any_of(result.stages.begin(), result.stages.end(),
                    [&](const PartitionStage& stage) { return stage.nodes == forbidden; }))
      continue;
    std::vector<int> order(devices);
    std::iota(order.begin(), order.end(), 0);
    do {
      for (size_t s = 0; s < result.stages.size(); ++s) result.stages[s].numbers = {order[s]};
      EvaluatePartition(problem, result);
      best = std::min(best, result.objective);
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return best;
}

TEST(PairLinks, EqualOnesAreOneLink) {
  std::mt19937 random(1);
  for (int i = 0; i < 20; ++i) {
    PartitionProblem problem = Chain(random, 8, 3);
    problem.devices[0].link = 0.5;
    PartitionResult one = SolvePartition(problem, {});
    problem.pair_links.assign(3, std::vector<double>(3, 0.5));
    PartitionResult pairs = SolvePartition(problem, {});
    EXPECT_NEAR(pairs.objective, one.objective, 1e-9);
    EXPECT_TRUE(pairs.proven);
  }
}

TEST(PairLinks, FindTheBestOfSmallChains) {
  std::mt19937 random(2);
  for (int i = 0; i < 60; ++i) {
    PartitionProblem problem = Chain(random, 7, 4);
    problem.pair_links.assign(4, std::vector<double>(4, 1));
    double best_link = 0;
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < 4; ++b)
        if (a != b) {
          problem.pair_links[a][b] = a % 2 == b % 2 ? 1 : 0.2 + 0.1 * (random() % 3);
          best_link = std::max(best_link, problem.pair_links[a][b]);
        }
    problem.devices[0].link = best_link;
    PartitionResult result = SolvePartition(problem, {});
    ASSERT_TRUE(result.feasible);
    EXPECT_EQ(CheckPartition(problem, result), "");
    double best = BruteForce(problem);
    EXPECT_NEAR(result.objective, best, 1e-9 * best);
    EXPECT_LE(result.lower_bound, best * (1 + 1e-9));
    EXPECT_TRUE(result.proven);
  }
}

// Returns the best cuts of a chain, with the devices in the order of their numbers.
double BestCuts(const PartitionProblem& problem) {
  int nodes = static_cast<int>(problem.nodes.size()), devices = problem.devices[0].count;
  std::vector<double> best(nodes + 1, kInfinity);
  best[0] = 0;
  for (int d = 0; d < devices; ++d) {
    std::vector<double> next(nodes + 1, kInfinity);
    for (int begin = 0; begin < nodes; ++begin) {
      if (best[begin] == kInfinity) continue;
      double work = 0;
      for (int end = begin + 1; end <= nodes; ++end) {
        work += problem.nodes[end - 1].device_time;
        double load = work;
        if (begin > 0) load += problem.values[begin - 1].time / problem.pair_links[d - 1][d];
        if (end < nodes && d + 1 < devices)
          load += problem.values[end - 1].time / problem.pair_links[d][d + 1];
        next[end] = std::min(next[end], std::max(best[begin], load));
      }
    }
    best = next;
  }
  return best[nodes];
}

// Five islands of four devices, numbered at random: the slow links should carry little traffic.
TEST(PairLinks, CutsWhereTheLinksAreSlow) {
  std::mt19937 random(4);
  for (int i = 0; i < 3; ++i) {
    const int devices = 20;
    PartitionProblem problem = Chain(random, 80, devices);
    for (PartitionValue& value : problem.values) value.time *= random() % 3 == 0 ? 0.01 : 1;
    problem.pair_links.assign(devices, std::vector<double>(devices, 1));
    for (int a = 0; a < devices; ++a)
      for (int b = 0; b < devices; ++b)
        if (a / 4 != b / 4) problem.pair_links[a][b] = 0.05;
    problem.stages = devices;
    double known = BestCuts(problem);
    std::vector<int> number(devices);
    std::iota(number.begin(), number.end(), 0);
    std::shuffle(number.begin(), number.end(), random);
    auto links = problem.pair_links;
    for (int a = 0; a < devices; ++a)
      for (int b = 0; b < devices; ++b) problem.pair_links[number[a]][number[b]] = links[a][b];
    for (bool exact : {false, true}) {
      PartitionResult result = SolvePartition(problem, {exact});
      EXPECT_EQ(CheckPartition(problem, result), "");
      EXPECT_LE(result.objective, known * (1 + 1e-9));
      EXPECT_GE(result.objective, result.lower_bound * (1 - 1e-9));
    }
  }
}

TEST(PairLinks, OfEveryPairAreNeeded) {
  std::mt19937 random(1);
  PartitionProblem problem = Chain(random, 4, 1);
  problem.pair_links = {{1}};
  EXPECT_THROW(SolvePartition(problem, {}), Error);
  problem.devices[0].count = 3;
  problem.pair_links = {{1, 2}, {2, 1}};
  EXPECT_THROW(SolvePartition(problem, {}), Error);
}

// Two islands of two devices with slow links between them.
TEST(PairLinks, NextBestWithoutTheSlowestStage) {
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    PartitionProblem problem = Chain(random, 7, 4);
    problem.pair_links.assign(4, std::vector<double>(4, 1));
    for (int a = 0; a < 4; ++a)
      for (int b = 0; b < 4; ++b)
        if (a / 2 != b / 2) problem.pair_links[a][b] = 0.25;
    PartitionResult result = SolvePartition(problem, {});
    Explanation explanation = ExplainPartition(problem, result, {});
    ASSERT_GE(explanation.stage, 0);
    double best = BruteForce(problem, result.stages[explanation.stage].nodes);
    EXPECT_NEAR(explanation.next_best, best, 1e-9 * best);
    EXPECT_TRUE(explanation.next_best_proven);
  }
}

// CPUs have their own numbers, separate from those of linked devices.
TEST(PairLinks, BesideCpus) {
  std::mt19937 random(4);
  for (int i = 0; i < 20; ++i) {
    PartitionProblem problem = Chain(random, 12, 2);
    DeviceClass cpu;
    cpu.name = "cpu";
    cpu.host = true;
    cpu.count = 5;
    problem.devices.push_back(cpu);
    for (PartitionNode& node : problem.nodes) node.host_time = node.device_time;
    problem.pair_links = {{1, 0.5}, {0.5, 1}};
    for (bool exact : {false, true}) {
      PartitionResult result = SolvePartition(problem, {exact});
      EXPECT_EQ(CheckPartition(problem, result), "");
      EXPECT_GE(result.objective, result.lower_bound * (1 - 1e-9));
    }
  }
}

}  // namespace
}  // namespace pipewright
