#include "plan/partition/problem/clusters.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace pipewright
