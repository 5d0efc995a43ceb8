#include "runtime/links/pairs.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

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

RankPairs Pairs(const std::vector<std::string>& devices, const std::vector<std::string>& ids) {
  const Chain chain = MakeChain(static_cast<int>(devices.size()));
  return PairsOverNccl(PlanPairs(chain.plan, chain.graph), devices, ids);
}
RankPairs Pairs(const std::vector<std::string>& devices) { return Pairs(devices, devices); }

TEST(Pairs, NeighborsOnDevicesInBothDirections) {
  EXPECT_EQ(Pairs({"cuda:0", "cuda:1", "cuda:2"}), (RankPairs{{0, 1}, {1, 0}, {1, 2}, {2, 1}}));
}

TEST(Pairs, NotWithTheCpu) {
  EXPECT_EQ(Pairs({"cuda:0", "cpu", "cuda:1"}), RankPairs{});
  EXPECT_EQ(Pairs({"cpu", "cuda:0", "cuda:1"}), (RankPairs{{1, 2}, {2, 1}}));
}

TEST(Pairs, NotOnOneDevice) {
  EXPECT_EQ(Pairs({"cuda:0", "cuda:0"}), RankPairs{});
  EXPECT_EQ(Pairs({"cuda:0", "cuda:0"}, {"a", "b"}), (RankPairs{{0, 1}, {1, 0}}));
  EXPECT_EQ(Pairs({"cuda:0", "cuda:1"}, {"a", "a"}), RankPairs{});
}

// Every stream needs a connection of its own.
TEST(Pairs, AsManyConnectionsAsStreams) {
  DevicePeers peers{Pairs({"cuda:0", "cuda:1", "cuda:2"}), {}};
  CheckConnections(peers, 32);
  CheckConnections(peers, 11);
  EXPECT_EQ(
      ErrorOf([&] { CheckConnections(peers, 10); }),
      "NCCL: rank 1 has 4 links (one for each rank that it sends to or receives from, and for "
      "each list of ranks that add gradients) and needs 11 connections to its device, where "
      "CUDA_DEVICE_MAX_CONNECTIONS gives 10\n"
      "  set CUDA_DEVICE_MAX_CONNECTIONS to 11 or more, or do not set it");
  EXPECT_EQ(ConnectionsNeeded(peers), 11);
  peers.sums = {{0, 1}, {2, 1, 0}};
  EXPECT_EQ(ConnectionsNeeded(peers), 15);
  EXPECT_EQ(ConnectionsNeeded({}), 0);
  DevicePeers many;
  for (int other = 1; other <= 30; ++other) many.pairs.emplace(0, other);
  EXPECT_EQ(ConnectionsNeeded(many), 63);
  EXPECT_NE(ErrorOf([&] { CheckConnections(many, 32); }).find("(--links mpi)"), std::string::npos);
}

}  // namespace
}  // namespace pipewright
