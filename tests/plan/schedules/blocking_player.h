// Runs a plan like blocking ranks, independently of how plans are checked: a message exists once
// its receiver has posted it and its sender has reached it.
#pragma once
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "plan/actions.h"
#include "plan/lowering/reduce_order.h"
#include "plan/plan.h"

namespace pipewright {

class BlockingPlayer {
 public:
  BlockingPlayer(const Plan& plan, const StageGraph& graph) : plan_(plan), graph_(graph) {
    exchanges_ = ReduceExchanges(graph);
  }

  // Returns the positions of the ranks that never end.
  const std::string& Stuck() const { return stuck_; }

  // Returns true if every rank reaches the end of its list.
  bool RunsThrough() {
    std::vector<size_t> at(plan_.ranks.size());
    bool moved = true;
    while (moved || joining_) {
      moved = joining_ = false;
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
  bool joining_ = false;
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
        return Reduce(rank, position);
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

  // A rank takes part in an exchange once it has reached all its REDUCE_GRADs of the exchange's
  // stages, and the previous exchange; it stays there until all ranks do.
  bool Reduce(int rank, size_t position) {
    reduced_[rank].insert(position);
    std::map<int, int> seen;  // stage -> REDUCE_GRADs so far
    for (size_t p : reduced_[rank]) ++seen[plan_.ranks[rank][p].stage];
    for (int step = 0; step < plan_.steps; ++step)
      for (size_t x = 0; x < exchanges_.size(); ++x) {
        bool mine = false, ready = true;
        for (int s : exchanges_[x].stages)
          for (int r : graph_.ranks_of[s])
            if (r == rank) mine = true, ready &= seen[s] > step;
        if (!mine) continue;
        if (!ready) return true;
        auto& joined = joined_[{step, static_cast<int>(x)}];
        joining_ |= joined.insert(rank).second;
        if (joined.size() < exchanges_[x].ranks.size()) return false;
      }
    return true;
  }

  const Plan& plan_;
  const StageGraph& graph_;
  std::vector<ReduceExchange> exchanges_;
  std::set<Message> posted_, sent_;
  std::set<std::tuple<bool, int, int>> done_;
  std::map<int, std::set<size_t>> reduced_;
  std::map<std::pair<int, int>, std::set<int>> joined_;
};

}  // namespace pipewright
