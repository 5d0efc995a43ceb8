// Runs the exchanges of gradients of a plan, independently of how plans are checked.
#pragma once
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "plan/lowering/reduce_order.h"
#include "plan/plan.h"

namespace pipewright {

class ExchangePlayer {
 public:
  ExchangePlayer(const Plan& plan, const StageGraph& graph)
      : plan_(plan), graph_(graph), exchanges_(ReduceExchanges(graph)) {}

  // Lets a rank reach a REDUCE_GRAD, any number of times; returns true once it is past it. A rank
  // takes part in an exchange once it has reached all its REDUCE_GRADs of the exchange's stages,
  // and the previous exchange; it stays there until all ranks do.
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
        has_joined_ |= joined.insert(rank).second;
        if (joined.size() < exchanges_[x].ranks.size()) return false;
      }
    return true;
  }

  // Returns whether a rank has joined an exchange since the last call.
  bool HasJoined() { return std::exchange(has_joined_, false); }

 private:
  const Plan& plan_;
  const StageGraph& graph_;
  std::vector<ReduceExchange> exchanges_;
  std::map<int, std::set<size_t>> reduced_;
  std::map<std::pair<int, int>, std::set<int>> joined_;
  bool has_joined_ = false;
};

}  // namespace pipewright
