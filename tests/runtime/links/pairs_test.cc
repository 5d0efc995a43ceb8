#include "runtime/links/pairs.h"

#include <gtest/gtest.h>

namespace pipewright {
namespace {

// The plan of a chain, one stage per rank.
struct Chain {
  StageGraph graph;
  Plan plan;
};

Chain MakeChain(int ranks) {
  Chain chain;
  chain.graph.stages = ranks;
  for (int s = 0; s < ranks; ++s) chain.graph.ranks_of.push_back({s});
  for (int s = 0; s + 1 < ranks; ++s) chain.graph.edges.push_back({s, s + 1, true});
  chain.plan.ranks.resize(static_cast<size_t>(ranks));
  auto add = [&](int rank, ActionKind kind, int stage, int peer) {
    Action action;
    action.kind = kind;
    action.stage = stage;
    action.microbatch = 0;
    action.peer = peer;
    chain.plan.ranks[static_cast<size_t>(rank)].push_back(action);
  };
  for (int s = 0; s + 1 < ranks; ++s) {
    add(s, ActionKind::kSendForward, s, s + 1);
    add(s + 1, ActionKind::kRecvForward, s + 1, s);
    add(s + 1, ActionKind::kSendBackward, s + 1, s);
    add(s, ActionKind::kRecvBackward, s, s + 1);
  }
  return chain;
}

NcclPairs Pairs(const std::vector<std::string>& devices, std::vector<std::string> visible = {}) {
  const Chain chain = MakeChain(static_cast<int>(devices.size()));
  visible.resize(devices.size());
  return PairsOf(chain.plan, chain.graph, devices, visible);
}

TEST(Pairs, NeighborsOnDevicesInBothDirections) {
  EXPECT_EQ(Pairs({"cuda:0", "cuda:1", "cuda:2"}), (NcclPairs{{0, 1}, {1, 0}, {1, 2}, {2, 1}}));
}

TEST(Pairs, NotWithTheCpu) {
  EXPECT_EQ(Pairs({"cuda:0", "cpu", "cuda:1"}), NcclPairs{});
  EXPECT_EQ(Pairs({"cpu", "cuda:0", "cuda:1"}), (NcclPairs{{1, 2}, {2, 1}}));
}

TEST(Pairs, NotOnOneDevice) {
  EXPECT_EQ(Pairs({"cuda:0", "cuda:0"}), NcclPairs{});
  EXPECT_EQ(Pairs({"cuda:0", "cuda:0"}, {"a", "b"}), (NcclPairs{{0, 1}, {1, 0}}));
}

}  // namespace
}  // namespace pipewright
