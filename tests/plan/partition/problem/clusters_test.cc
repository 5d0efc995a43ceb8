#include "plan/partition/problem/clusters.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pipewright {
namespace {

TEST(Clusters, NetsOfTheSameGroupsAreOneWithAllTheirBytes) {
  UnitGraph graph;
  graph.units.resize(4);
  graph.next = {{2}, {3}, {}, {}};
  graph.previous = {{}, {}, {0}, {1}};
  graph.nets = {{{0, 2}, 1, 1, 5, 7}, {{1, 3}, 2, 1, 6, 11}};
  graph.nets_of = {{0}, {1}, {0}, {1}};
  const Coarser coarser = GroupUnits(graph, {0, 0, 2, 2});
  ASSERT_EQ(coarser.graph.units.size(), 2u);
  ASSERT_EQ(coarser.graph.nets.size(), 1u);
  const Net& net = coarser.graph.nets[0];
  EXPECT_EQ(net.units, (std::vector<int>{0, 1}));
  EXPECT_EQ(net.time, 3);
  EXPECT_EQ(net.transfers, 2);
  EXPECT_EQ(net.bytes, 11);
  EXPECT_EQ(net.stash_bytes, 18);
}

// Different seeds join different units; the same seed joins the same units.
TEST(Clusters, SeedsJoinUnitsInOtherWays) {
  UnitGraph graph;
  const int size = 200;
  graph.units.resize(size);
  graph.next.resize(size), graph.previous.resize(size), graph.nets_of.resize(size);
  for (Unit& unit : graph.units) unit.device_time = 1;
  for (int u = 0; u + 1 < size; ++u) {
    graph.next[u] = {u + 1}, graph.previous[u + 1] = {u};
    graph.nets.push_back({{u, u + 1}, 1, 1, 1, 0});
    graph.nets_of[u].push_back(u), graph.nets_of[u + 1].push_back(u);
  }
  auto groups = [&](unsigned seed) {
    ClusterOptions options;
    options.seed = seed;
    return CoarsenByTraffic(graph, 0, options).group_of;
  };
  EXPECT_EQ(groups(0), groups(0));
  EXPECT_EQ(groups(7), groups(7));
  EXPECT_NE(groups(7), groups(0));
  EXPECT_NE(groups(7), groups(8));
  const std::vector<int> joined = groups(7);  // groups of a chain follow each other
  EXPECT_TRUE(std::is_sorted(joined.begin(), joined.end()));
}

}  // namespace
}  // namespace pipewright
