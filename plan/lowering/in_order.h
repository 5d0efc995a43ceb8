// Checks whether a plan can run over links that keep the order of messages and have no tags, as
// those of NCCL.
#pragma once
#include <optional>
#include <string>

#include "plan/plan.h"

namespace pipewright {

// Which transfers of a rank are in one queue (a communicator), and run one after the other.
enum class LinkQueues {
  kDirections,  // those of values; those of gradients
  kPairs,       // those of values with one other rank; those of gradients with one other rank
  kChannels,    // those to one other rank; those from one other rank
};

// Returns the first rule that the plan breaks, with the actions and their ranks, or nothing:
//   channel   the k-th receive from a rank gets what that rank sends as the k-th (this rule and the
//             others of messages are those of plan/lowering/transfer_index.h)
//   in order  the plan ends. Each rank has its computes and exchanges of gradients in one queue,
//             and its transfers in others, all in the order of the list. A transfer waits for the
//             queue of computes to reach it, since it uses their data and buffers, and ends with
//             the transfer at the other rank, when both are first in their queues. A compute waits
//             for the receives of its data.
// With kChannels, this allows every plan that Validate allows: a queue has only sends to a rank, or
// only receives from it, so that transfers come to an end in any order in which blocking ranks
// could run the plan. The other two allow fewer plans, since a RECV that is posted early holds up
// the sends behind it. Starting a transfer must not block the rank: NCCL does so when a connection
// is first used, so connections must be used before the plan runs. Takes time linear in the
// actions.
std::optional<std::string> InOrderProblem(const Plan& plan, const StageGraph& graph,
                                          LinkQueues queues = LinkQueues::kChannels);

}  // namespace pipewright
