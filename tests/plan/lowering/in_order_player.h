// Runs a plan over links without tags, one action at a time, independently of how plans are
// checked.
#pragma once
#include <set>
#include <tuple>
#include <vector>

#include "plan/actions.h"
#include "plan/lowering/in_order.h"
#include "plan/plan.h"
#include "tests/plan/schedules/exchange_player.h"

namespace pipewright {

class InOrderPlayer {
 public:
  InOrderPlayer(const Plan& plan, const StageGraph& graph, LinkQueues queues)
      : plan_(plan), graph_(graph), queues_(queues), exchanges_(plan, graph) {
    for (const auto& actions : plan.ranks) done_.emplace_back(actions.size(), false);
  }

  bool RunsThrough() {
    bool moved = true;
    while (moved || exchanges_.HasJoined()) {
      moved = false;
      for (size_t r = 0; r < done_.size(); ++r)
        for (size_t p = 0; p < done_[r].size(); ++p)
          if (!done_[r][p]) moved |= Do(r, p);
    }
    for (const auto& rank : done_)
      for (bool done : rank)
        if (!done) return false;
    return true;
  }

 private:
  const Action& At(size_t rank, size_t position) const { return plan_.ranks[rank][position]; }
  size_t PeerRank(const Action& a) const {
    return static_cast<size_t>(RankOf(graph_, PeerOf(a), a.microbatch));
  }
  static bool IsBackward(const Action& a) {
    return a.kind == ActionKind::kSendBackward || a.kind == ActionKind::kRecvBackward;
  }

  bool InOneQueue(const Action& a, const Action& b) const {
    if (!IsTransfer(a.kind) || !IsTransfer(b.kind)) return !IsTransfer(a.kind);
    if (queues_ == LinkQueues::kDirections) return IsBackward(a) == IsBackward(b);
    if (PeerRank(a) != PeerRank(b)) return false;
    return queues_ == LinkQueues::kPairs ? IsBackward(a) == IsBackward(b)
                                         : IsSend(a.kind) == IsSend(b.kind);
  }

  // An action can begin once the earlier ones of its queue and all earlier computes are done.
  bool CanBegin(size_t rank, size_t position) const {
    for (size_t p = 0; p < position; ++p)
      if (!done_[rank][p] && InOneQueue(At(rank, p), At(rank, position))) return false;
    return true;
  }

  bool Do(size_t rank, size_t position) {
    const Action& a = At(rank, position);
    if (!BeginsNow(rank, position)) return false;
    if (a.kind == ActionKind::kReduceGrad) {
      if (!exchanges_.Reduce(static_cast<int>(rank), position)) return false;
    } else if (IsTransfer(a.kind)) {
      return Meet(rank, position);
    }
    return done_[rank][position] = true;
  }

  bool BeginsNow(size_t rank, size_t position) const {
    if (!CanBegin(rank, position)) return false;
    const Action& a = At(rank, position);
    for (size_t p = 0; p < position; ++p) {
      if (done_[rank][p]) continue;
      const Action& b = At(rank, p);
      if (IsTransfer(a.kind) && !IsTransfer(b.kind)) return false;
      const bool values = b.kind == ActionKind::kRecvForward && HasForward(a) &&
                          b.stage == a.stage && b.microbatch == a.microbatch;
      const bool gradients = b.kind == ActionKind::kRecvBackward && HasBackward(a) &&
                             b.stage == BackwardStage(a) && b.microbatch == BackwardMicrobatch(a);
      if (values || gradients) return false;
    }
    return true;
  }

  // Completes a transfer with its other end.
  bool Meet(size_t rank, size_t position) {
    const Action& a = At(rank, position);
    const size_t peer = PeerRank(a);
    for (size_t p = 0; p < done_[peer].size(); ++p) {
      const Action& b = At(peer, p);
      if (!IsTransfer(b.kind) || IsSend(a.kind) == IsSend(b.kind) ||
          IsBackward(a) != IsBackward(b) || b.stage != PeerOf(a) || PeerOf(b) != a.stage ||
          b.microbatch != a.microbatch)
        continue;
      if (!BeginsNow(peer, p)) return false;
      return done_[rank][position] = done_[peer][p] = true;
    }
    return false;
  }

  const Plan& plan_;
  const StageGraph& graph_;
  LinkQueues queues_;
  ExchangePlayer exchanges_;
  std::vector<std::vector<bool>> done_;
};

}  // namespace pipewright
