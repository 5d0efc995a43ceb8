// Small questions about actions and plans that everything in plan/ asks.
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

// A forward, alone or as half of a pair: stage and microbatch are the action's own.
inline bool HasForward(const Action& a) {
  return a.kind == ActionKind::kForward || a.kind == ActionKind::kOverlap;
}

// Something that gives the gradients of a stage's inputs: B, I or the second half of a pair.
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

// The stage at the other end of a transfer; where none is written, the neighbour.
int PeerOf(const Action& transfer);

// "rank 2, action 17, 2SEND_F5>4"
std::string Place(int rank, size_t position, const Action& action);

// The rank that runs `stage` on `microbatch`.
inline int RankOf(const StageGraph& graph, int stage, int microbatch) {
  const std::vector<int>& ranks = graph.ranks_of[stage];
  if (ranks.size() == 1) return ranks[0];
  if (graph.microbatches > 0) microbatch %= graph.microbatches;
  return ranks[static_cast<size_t>(microbatch) % ranks.size()];
}

// Fills stages, microbatches, steps and forward_only from the actions. Steps are counted by STEP;
// where there is none, `steps` tells (0: one).
void CountPlan(Plan& plan, int steps = 0);

// Only what computes, with the layout dropped.
Plan ComputeOnly(const Plan& plan);

bool HasTransfers(const Plan& plan);
bool HasSteps(const Plan& plan);

// Per stage whether the plan recomputes it; empty when it recomputes none.
std::vector<char> RecomputeOf(const Plan& plan);

}  // namespace pipewright
