#include "plan/partition/pair_links_exact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "plan/partition/links.h"
#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

constexpr int kDevices = 3;

// A graph of up to five nodes on three devices with other links between each two.
PartitionProblem Linked(std::mt19937& random) {
  PartitionProblem problem = RandomProblem(random, 5, 16);
  problem.devices[0].count = kDevices;
  problem.pair_links.assign(kDevices, std::vector<double>(kDevices, 1));
  double best = 0;
  for (int a = 0; a < kDevices; ++a)
    for (int b = 0; b < a; ++b) {
      double link = 0.25 * static_cast<double>(1 + random() % 8);
      problem.pair_links[a][b] = problem.pair_links[b][a] = link;
      best = std::max(best, link);
    }
  problem.devices[0].link = best;
  return problem;
}

// Puts each node in each of up to three stages, and the stages on the devices in each order.
double AllPlacements(const PartitionProblem& problem, const std::vector<int>& forbidden) {
  int n = static_cast<int>(problem.nodes.size()), choices = 1;
  for (int i = 0; i < n; ++i) choices *= kDevices;
  double best = kInfinity;
  for (int choice = 0; choice < choices; ++choice) {
    PartitionResult result;
    result.stages.resize(kDevices);
    for (int i = 0, rest = choice; i < n; ++i, rest /= kDevices)
      result.stages[rest % kDevices].nodes.push_back(i);
    while (!result.stages.empty() && result.stages.back().nodes.empty()) result.stages.pop_back();
    bool skip = false;
    for (const PartitionStage& stage : result.stages)
      skip = skip || stage.nodes.empty() || stage.nodes == forbidden;
    if (skip) continue;
    std::vector<int> order(kDevices);
    std::iota(order.begin(), order.end(), 0);
    do {
      for (size_t s = 0; s < result.stages.size(); ++s) result.stages[s].numbers = {order[s]};
      EvaluatePartition(problem, result);
      if (CheckPartition(problem, result).empty()) best = std::min(best, result.objective);
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return best;
}

TEST(SearchPairLinks, FindsTheBestOfAllPlacements) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    PartitionProblem problem = Linked(random);
    UnitGraph graph = BuildUnits(problem, Merge::kNone);
    PartitionResult known;
    ASSERT_TRUE(SearchPairLinks(problem, graph, {}, 10'000'000, known)) << seed;
    double best = AllPlacements(problem, {});
    EXPECT_NEAR(known.objective, best, 1e-9 * (1 + best)) << seed;
    EXPECT_EQ(CheckPartition(problem, known), "") << seed;
    // The best without one of its stages.
    const std::vector<int> forbidden = known.stages[0].nodes;
    PartitionResult next;
    ASSERT_TRUE(SearchPairLinks(problem, graph, forbidden, 10'000'000, next)) << seed;
    double other = AllPlacements(problem, forbidden);
    ASSERT_EQ(next.feasible, other < kInfinity) << seed;
    if (!next.feasible) continue;
    EXPECT_NEAR(next.objective, other, 1e-9 * (1 + other)) << seed;
  }
}

TEST(SearchPairLinks, KeepsWhatItCannotImprove) {
  std::mt19937 random(3);
  PartitionProblem problem = Linked(random);
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  PartitionResult known;
  known.objective = AllPlacements(problem, {});
  EXPECT_TRUE(SearchPairLinks(problem, graph, {}, 10'000'000, known));
  EXPECT_TRUE(known.stages.empty());
}

TEST(SearchPairLinks, GivesUpIfThereAreTooManyChoices) {
  std::mt19937 random(3);
  PartitionProblem problem = Linked(random);
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  PartitionResult known;
  EXPECT_FALSE(SearchPairLinks(problem, graph, {}, 1, known));
  problem.max_replicas = 2;
  EXPECT_FALSE(SearchPairLinks(problem, graph, {}, 10'000'000, known));
}

TEST(SolvePairLinks, AgreesWithAllPlacements) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    PartitionProblem problem = Linked(random);
    double best = AllPlacements(problem, {});
    PartitionResult result = SolvePairLinks(problem, {});
    EXPECT_NEAR(result.objective, best, 1e-9 * (1 + best)) << seed;
    EXPECT_LE(result.lower_bound, best * (1 + 1e-9)) << seed;
    EXPECT_TRUE(result.proven) << seed;
    const std::vector<int> forbidden = result.stages.back().nodes;
    PartitionResult next =
        NextBestPairLinks(problem, BuildUnits(problem, Merge::kNone), forbidden, {});
    double other = AllPlacements(problem, forbidden);
    ASSERT_EQ(next.feasible, other < kInfinity) << seed;
    if (!next.feasible) continue;
    EXPECT_NEAR(next.objective, other, 1e-9 * (1 + other)) << seed;
  }
}

}  // namespace
}  // namespace pipewright
