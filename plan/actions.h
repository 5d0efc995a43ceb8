// Helpers that answer simple questions about actions and plans.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

inline bool IsCompute(ActionKind kind) { return kind <= ActionKind::kOverlap; }
inline bool IsSend(ActionKind kind) {
  return kind == ActionKind::kSendForward || kind == ActionKind::kSendBackward;
}
inline bool IsRecv(ActionKind kind) {
  return kind == ActionKind::kRecvForward || kind == ActionKind::kRecvBackward;
}
inline bool IsTransfer(ActionKind kind) { return IsSend(kind) || IsRecv(kind); }

// Returns true for a forward, alone or as half of a pair; stage and microbatch are the action's
// own.
inline bool HasForward(const Action& a) {
  return a.kind == ActionKind::kForward || a.kind == ActionKind::kOverlap;
}

// Returns true for an action that computes the gradients of a stage's inputs: B, I or the second
// half of a pair.
inline bool HasBackward(const Action& a) {
  return a.kind == ActionKind::kBackward || a.kind == ActionKind::kInputGrad ||
         a.kind == ActionKind::kOverlap;
}
inline int BackwardStage(const Action& a) {
  return a.kind == ActionKind::kOverlap ? a.overlap_stage : a.stage;
}
inline int BackwardMicrobatch(const Action& a) {
  return a.kind == ActionKind::kOverlap ? a.overlap_microbatch : a.microbatch;
}

// Returns the stage at the other end of a transfer; the neighbor if none is written.
int PeerOf(const Action& transfer);

// Returns text such as "rank 2, action 17, 2SEND_F5>4".
std::string PlaceText(int rank, size_t position, const Action& action);

// Returns the rank that runs `stage` on `microbatch`.
inline int RankOf(const StageGraph& graph, int stage, int microbatch) {
  const std::vector<int>& ranks = graph.ranks_of[stage];
  if (ranks.size() == 1) return ranks[0];
  if (graph.microbatches > 0) microbatch %= graph.microbatches;
  return ranks[static_cast<size_t>(microbatch) % ranks.size()];
}

// Fills stages, microbatches, steps and forward_only from the actions. Steps are counted by STEP;
// if there is none, `steps` gives the number (0: one).
void CountPlan(Plan& plan, int steps = 0);

// Returns only the compute actions, without the layout.
Plan ComputeOnly(const Plan& plan);

bool HasTransfers(const Plan& plan);
bool HasSteps(const Plan& plan);

// Returns a flag for each stage, true if the plan recomputes it; empty if it recomputes none.
std::vector<char> RecomputeOf(const Plan& plan);

}  // namespace pipewright
