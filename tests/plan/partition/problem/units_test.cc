#include "plan/partition/problem/units.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "plan/partition/problem/stage_load.h"
#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

using Ints = std::vector<int>;

PartitionProblem Edges(int nodes, const std::vector<std::pair<int, int>>& edges) {
  PartitionProblem problem;
  problem.nodes.resize(nodes);
  for (auto [from, to] : edges) problem.values.push_back({from, {to}, 1, 1, 0});
  problem.devices.resize(1);
  return problem;
}

std::vector<Ints> Nodes(const UnitGraph& graph) {
  std::vector<Ints> nodes;
  for (const Unit& unit : graph.units) nodes.push_back(unit.nodes);
  return nodes;
}

TEST(UnitSets, KeepTheSmallerRepresentative) {
  UnitSets sets(5);
  sets.Unite(4, 3);
  sets.Unite(1, 4);
  EXPECT_EQ(sets.Find(3), 1);
  EXPECT_EQ(sets.Find(4), 1);
  EXPECT_EQ(sets.Find(0), 0);
  EXPECT_EQ(sets.Find(2), 2);
}

// Compares with a closure of the edges: two are in one component if each reaches the other.
TEST(UniteCycles, UnitesWhatReachesEachOther) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const int n = 8;
    bool reach[n][n] = {};
    std::vector<std::pair<int, int>> edges;
    for (unsigned e = random() % 14; e > 0; --e) {
      int from = static_cast<int>(random() % n), to = static_cast<int>(random() % n);
      if (from == to) continue;
      edges.push_back({from, to});
      reach[from][to] = true;
    }
    for (int k = 0; k < n; ++k)
      for (int a = 0; a < n; ++a)
        for (int b = 0; b < n; ++b) reach[a][b] |= reach[a][k] && reach[k][b];
    UnitSets sets(n);
    UniteCycles(sets, edges);
    for (int a = 0; a < n; ++a)
      for (int b = 0; b < n; ++b)
        EXPECT_EQ(sets.Find(a) == sets.Find(b), a == b || (reach[a][b] && reach[b][a])) << seed;
  }
}

// Nodes 0 and 2 are a group, so 1 between them must join it.
TEST(BuildUnits, UniteGroupsAndWhatLiesBetween) {
  PartitionProblem problem = Edges(4, {{0, 1}, {1, 2}, {2, 3}});
  problem.nodes[0].group = problem.nodes[2].group = 5;
  for (int i = 0; i < 4; ++i) problem.nodes[i].device_time = 1 << i;
  problem.nodes[1].device_ok = false;
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  ASSERT_EQ(Nodes(graph), (std::vector<Ints>{{0, 1, 2}, {3}}));
  EXPECT_EQ(graph.units[0].device_time, 7);
  EXPECT_FALSE(graph.units[0].device_ok);
  EXPECT_TRUE(graph.units[1].device_ok);
  ASSERT_EQ(graph.nets.size(), 1u);
  EXPECT_EQ(graph.nets[0].units, (Ints{0, 1}));
  EXPECT_EQ(GraphSize(graph), 4);  // two units and two pins
}

TEST(BuildUnits, JoinsNodesWithoutWorkIfAsked) {
  PartitionProblem problem = Edges(3, {{0, 1}, {1, 2}});
  problem.nodes[1].device_time = problem.nodes[2].device_time = 1;
  EXPECT_EQ(BuildUnits(problem, Merge::kNone).units.size(), 3u);
  EXPECT_EQ(Nodes(BuildUnits(problem, Merge::kLossless)), (std::vector<Ints>{{0, 1}, {2}}));
  problem.nodes[0].static_bytes = 4;
  EXPECT_EQ(BuildUnits(problem, Merge::kLossless).units.size(), 2u);  // memory has no limit
  problem.devices[0].memory_bytes = 3;
  EXPECT_EQ(BuildUnits(problem, Merge::kLossless).units.size(), 3u);
  EXPECT_EQ(BuildUnits(problem, Merge::kParameters).units.size(), 2u);
  EXPECT_EQ(ExactMerge(problem), Merge::kLossless);
  problem.stages = 2;
  EXPECT_EQ(ExactMerge(problem), Merge::kNone);
}

TEST(BuildUnits, NumbersUnitsInTopologicalOrderWithConsistentLists) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    PartitionProblem problem = RandomProblem(random, 12, static_cast<int>(random() % 512));
    for (Merge merge : {Merge::kNone, Merge::kLossless, Merge::kParameters}) {
      UnitGraph graph = BuildUnits(problem, merge);
      std::set<int> nodes;
      for (const Unit& unit : graph.units)
        for (int node : unit.nodes) EXPECT_TRUE(nodes.insert(node).second) << seed;
      EXPECT_EQ(nodes.size(), problem.nodes.size()) << seed;
      std::set<std::pair<int, int>> next, previous;
      for (int u = 0; u < static_cast<int>(graph.units.size()); ++u) {
        for (int after : graph.next[u]) next.insert({u, after});
        for (int before : graph.previous[u]) previous.insert({before, u});
      }
      EXPECT_EQ(next, previous) << seed;
      for (auto [from, to] : next) EXPECT_LT(from, to) << seed;
      std::set<Ints> pins;
      for (const Net& net : graph.nets) {
        EXPECT_GE(net.units.size(), 2u) << seed;
        EXPECT_TRUE(pins.insert(net.units).second) << seed;
      }
    }
  }
}

TEST(Coarsen, AddsUpUnitsAndDropsNetsWithinAGroup) {
  PartitionProblem problem = Edges(4, {{0, 1}, {1, 2}, {2, 3}});
  for (int i = 0; i < 4; ++i) problem.nodes[i].static_bytes = 1 << i;
  problem.values[0].stash_bytes = 6;
  UnitGraph coarse = Coarsen(BuildUnits(problem, Merge::kNone), {0, 0, 1, 1}, 2);
  EXPECT_EQ(Nodes(coarse), (std::vector<Ints>{{0, 1}, {2, 3}}));
  EXPECT_EQ(coarse.units[0].static_bytes, 3);
  EXPECT_EQ(coarse.units[0].stash_bytes, 6);
  EXPECT_EQ(coarse.units[1].static_bytes, 12);
  EXPECT_EQ(coarse.next, (std::vector<Ints>{{1}, {}}));
  EXPECT_EQ(coarse.previous, (std::vector<Ints>{{}, {0}}));
  ASSERT_EQ(coarse.nets.size(), 1u);
  EXPECT_EQ(coarse.nets[0].units, (Ints{0, 1}));
  EXPECT_EQ(coarse.nets_of, (std::vector<Ints>{{0}, {0}}));
}

}  // namespace
}  // namespace pipewright
