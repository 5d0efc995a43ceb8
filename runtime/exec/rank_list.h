// RankList is one rank's action list with everything resolved that does not change between steps:
// edges, peers, tags and groups.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/stage_graph.h"
#include "runtime/exec/executor.h"

namespace pipewright {

struct RankEntry {
  Action action;
  std::string text;  // as in the plan text
  // Transfers: the edge and the rank at its other end, or -1 if both ends are on this rank.
  int edge = -1, peer_rank = -1, tag = -1;
  int slot = -1;  // receives: the buffer of the edge, also where the plan leaves its number out
  // Sends: the messages of one edge and direction to one rank form a channel.
  int channel = -1;
  // REDUCE_GRAD: the shared groups whose exchange begins here.
  std::vector<int> groups;
};

struct RankList {
  std::vector<RankEntry> entries;
  EdgeIndex edges;       // all edges
  EdgeIndex gradients;   // edges that carry gradients
  int microbatches = 0;  // largest microbatch index in the plan + 1
  int cold_microbatches = 0;  // ColdMicrobatches of the plan
  int first_group_tag = 0;
  // By channel: how many receive buffers the plan gives the edge at the receiver.
  std::vector<int> buffers;
};

// Returns how many microbatches, from 0, have a message that a rank sends, or posts the receive of,
// before it has run each of its computations and updates for the first time.
int ColdMicrobatches(const Plan& plan);

// Builds the list. Each edge, direction and microbatch has a tag of its own, so that messages are
// not confused even if both sides post them in different orders; each group has one too. If there
// are more messages than tags, microbatches share tags, and the order of posting decides.
//
// The exchange of a shared group begins at the last REDUCE_GRAD within a step of this rank's stages
// in the group; if several REDUCE_GRADs are adjacent, at the last of them.
//
// Throws Error("rank R, action N, TEXT", ...) if the list does not fit the graph.
RankList MakeRankList(const Plan& plan, const StageGraph& graph,
                      const std::vector<SharedGroup>& groups, int rank, int max_tag);

}  // namespace pipewright
