#include "plan/partition/fast/orders.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

void ExpectTopological(const UnitGraph& graph, const std::vector<int>& order) {
  int n = static_cast<int>(graph.units.size());
  std::vector<int> place(n, -1);
  ASSERT_EQ(order.size(), graph.units.size());
  for (int p = 0; p < n; ++p) place[order[p]] = p;
  for (int u = 0; u < n; ++u) {
    EXPECT_GE(place[u], 0) << u;
    for (int after : graph.next[u]) EXPECT_LT(place[u], place[after]) << u << " " << after;
  }
}

TEST(CandidateOrders, AreTopologicalAndBeginWithTheNumbers) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const int features = seed % 3 == 0 ? 4 : seed % 3 == 1 ? 128 : 0;
    UnitGraph graph = BuildUnits(RandomProblem(random, 30, features), Merge::kNone);
    std::vector<std::vector<int>> orders = CandidateOrders(graph);
    ASSERT_FALSE(orders.empty());
    std::vector<int> numbers(graph.units.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    EXPECT_EQ(orders[0], numbers);
    for (const std::vector<int>& order : orders) ExpectTopological(graph, order);
  }
}

TEST(CandidateOrders, OfAChainAreAllTheSame) {
  PartitionProblem problem;
  problem.nodes.resize(6);
  for (int i = 0; i < 5; ++i) problem.values.push_back({i, {i + 1}, 1, 1, 0});
  problem.devices.resize(1);
  for (const std::vector<int>& order : CandidateOrders(BuildUnits(problem, Merge::kNone)))
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4, 5}));
}

// Two chains side by side, numbered in turn: some order finishes one before the other.
TEST(CandidateOrders, FollowOneBranchAtATime) {
  PartitionProblem problem;
  problem.nodes.resize(12);
  for (PartitionNode& node : problem.nodes) node.device_time = 1;
  for (int i = 0; i < 10; ++i) problem.values.push_back({i, {i + 2}, 1, 1, 0});
  problem.devices.resize(1);
  std::vector<std::vector<int>> orders = CandidateOrders(BuildUnits(problem, Merge::kNone));
  EXPECT_TRUE(std::any_of(orders.begin(), orders.end(), [](const std::vector<int>& order) {
    return std::all_of(order.begin(), order.begin() + 6,
                       [&](int unit) { return unit % 2 == order[0] % 2; });
  }));
}

}  // namespace
}  // namespace pipewright
