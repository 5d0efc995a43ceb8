// Runs a plan like blocking ranks, independently of how plans are checked: a message exists once
// its receiver has posted it and its sender has reached it.
#pragma once
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "plan/actions.h"
#include "plan/plan.h"
#include "tests/plan/schedules/exchange_player.h"

namespace pipewright {

class BlockingPlayer {
 public:
  BlockingPlayer(const Plan& plan, const StageGraph& graph)
      : plan_(plan), graph_(graph), exchanges_(plan, graph) {}

  // Returns the positions of the ranks that never end.
  const std::string& Stuck() const { return stuck_; }

  // Returns true if every rank reaches the end of its list.
  bool RunsThrough() {
    std::vector<size_t> at(plan_.ranks.size());
    bool moved = true;
    while (moved || exchanges_.HasJoined()) {
      moved = false;
      for (size_t r = 0; r < at.size(); ++r)
        while (at[r] < plan_.ranks[r].size() && Do(static_cast<int>(r), at[r]))
          ++at[r], moved = true;
    }
    for (size_t r = 0; r < at.size(); ++r)
      if (at[r] < plan_.ranks[r].size()) {
        stuck_ += PlaceText(static_cast<int>(r), at[r], plan_.ranks[r][at[r]]) + "\n";
      }
    return stuck_.empty();
  }

 private:
  std::string stuck_;
  using Message = std::tuple<bool, int, int, int>;  // backward, from, to, microbatch

  bool Do(int rank, size_t position) {
    const Action& a = plan_.ranks[rank][position];
    int peer = IsTransfer(a.kind) ? PeerOf(a) : -1;
    switch (a.kind) {
      case ActionKind::kRecvForward:
      case ActionKind::kRecvBackward:
        posted_.insert({a.kind == ActionKind::kRecvBackward, peer, a.stage, a.microbatch});
        return true;
      case ActionKind::kSendForward:
      case ActionKind::kSendBackward: {
        Message m{a.kind == ActionKind::kSendBackward, a.stage, peer, a.microbatch};
        if (!posted_.count(m)) return false;
        sent_.insert(m);
        return true;
      }
      case ActionKind::kReduceGrad:
        return exchanges_.Reduce(rank, position);
      default:
        return Compute(rank, a);
    }
  }

  bool Compute(int rank, const Action& a) {
    if (!IsCompute(a.kind)) return true;
    auto there = [&](bool backward, int from, int to, int i) {
      if (RankOf(graph_, from, i) == rank) return done_.count({backward, from, i}) > 0;
      return sent_.count({backward, from, to, i}) > 0;
    };
    for (const StageEdge& e : graph_.edges) {
      if (HasForward(a) && e.to == a.stage && !there(false, e.from, e.to, a.microbatch))
        return false;
      if (HasBackward(a) && e.gradient && e.from == BackwardStage(a) &&
          !there(true, e.to, e.from, BackwardMicrobatch(a)))
        return false;
    }
    if (HasForward(a)) done_.insert({false, a.stage, a.microbatch});
    if (HasBackward(a)) done_.insert({true, BackwardStage(a), BackwardMicrobatch(a)});
    return true;
  }

  const Plan& plan_;
  const StageGraph& graph_;
  ExchangePlayer exchanges_;
  std::set<Message> posted_, sent_;
  std::set<std::tuple<bool, int, int>> done_;
};

}  // namespace pipewright
