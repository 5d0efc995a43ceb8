#include "plan/lowering/rendezvous.h"

#include <algorithm>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/lowering/reduce_order.h"

namespace pipewright {

namespace {

// A rank waits until `rank` is past `position`, or until all ranks have joined an exchange.
struct Wait {
  int rank = -1, position = -1;
  int exchange = -1;
};

class Rendezvous {
 public:
  Rendezvous(const Plan& plan, const StageGraph& graph, const EdgeIndex& edges,
             const TransferIndex& transfers)
      : plan_(plan), graph_(graph), edges_(edges), transfers_(transfers) {
    size_t ranks = plan.ranks.size();
    at_.assign(ranks, 0);
    waiting_.resize(ranks);
    exchanges_ = ReduceExchanges(graph);
    joined_.assign(exchanges_.size(), 0);
    exchange_waits_.resize(exchanges_.size());
    joins_.resize(ranks);
    next_join_.assign(ranks, 0);
    PlaceJoins();
  }

  void Run() {
    std::vector<int> runnable;
    for (size_t r = at_.size(); r-- > 0;) runnable.push_back(static_cast<int>(r));
    size_t finished = 0;
    while (!runnable.empty()) {
      int r = runnable.back();
      runnable.pop_back();
      size_t size = plan_.ranks[r].size();
      while (static_cast<size_t>(at_[r]) < size) {
        Wait wait = Blocked(r, &runnable);
        if (wait.exchange >= 0) {
          exchange_waits_[wait.exchange].push_back(r);
          break;
        }
        if (wait.rank >= 0) {
          waiting_[wait.rank].emplace_back(wait.position, r);
          break;
        }
        ++at_[r];
      }
      finished += static_cast<size_t>(at_[r]) == size;
      Wake(r, runnable);
    }
    if (finished < at_.size()) Fail();
  }

 private:
  // A rank joins an exchange at its last REDUCE_GRAD of one of its stages, after earlier exchanges.
  void PlaceJoins() {
    std::vector<std::vector<std::pair<int, int>>> reduces(plan_.ranks.size());  // stage, position
    for (size_t r = 0; r < plan_.ranks.size(); ++r)
      for (size_t p = 0; p < plan_.ranks[r].size(); ++p)
        if (plan_.ranks[r][p].kind == ActionKind::kReduceGrad)
          reduces[r].emplace_back(plan_.ranks[r][p].stage, static_cast<int>(p));
    for (auto& list : reduces) std::stable_sort(list.begin(), list.end());
    for (size_t x = 0; x < exchanges_.size(); ++x)
      for (int r : exchanges_[x].ranks) {
        // The n-th REDUCE_GRAD of each stage belongs to the n-th step.
        std::vector<int> last;
        for (int s : exchanges_[x].stages) {
          auto from = std::lower_bound(reduces[r].begin(), reduces[r].end(), std::pair(s, -1));
          for (size_t n = 0; from != reduces[r].end() && from->first == s; ++from, ++n) {
            if (n == last.size()) last.push_back(0);
            last[n] = std::max(last[n], from->second);
          }
        }
        for (size_t n = 0; n < last.size(); ++n)
          joins_[r].push_back({static_cast<int>(n), static_cast<int>(x), last[n]});
      }
    for (auto& list : joins_) {
      std::stable_sort(list.begin(), list.end(), [](const Join& a, const Join& b) {
        return std::pair(a.step, a.exchange) < std::pair(b.step, b.exchange);
      });
      for (size_t i = 1; i < list.size(); ++i)
        list[i].position = std::max(list[i].position, list[i - 1].position);
    }
  }

  Wait Blocked(int r, std::vector<int>* runnable) {
    const Action& a = plan_.ranks[r][at_[r]];
    if (IsSend(a.kind)) {
      int e = EdgeOf(graph_, edges_, a);
      bool backward = a.kind == ActionKind::kSendBackward;
      int peer = RankOf(graph_, PeerOf(a), a.microbatch);
      int recv = (backward ? transfers_.recv_backward
                           : transfers_.recv_forward)[transfers_.At(e, a.microbatch)];
      return at_[peer] > recv ? Wait{} : Wait{peer, recv, -1};
    }
    if (HasForward(a))
      for (int e : edges_.in[a.stage]) {
        Wait wait = Unsent(transfers_.send_forward, e, graph_.edges[e].from, a.microbatch);
        if (wait.rank >= 0) return wait;
      }
    if (HasBackward(a) && !transfers_.send_backward.empty())
      for (int e : edges_.out[BackwardStage(a)]) {
        Wait wait = Unsent(transfers_.send_backward, e, graph_.edges[e].to, BackwardMicrobatch(a));
        if (wait.rank >= 0) return wait;
      }
    if (a.kind == ActionKind::kReduceGrad) return Exchange(r, runnable);
    return {};
  }

  Wait Unsent(const std::vector<int32_t>& sends, int edge, int from, int microbatch) const {
    int send = sends[transfers_.At(edge, microbatch)];
    if (send < 0) return {};
    int rank = RankOf(graph_, from, microbatch);
    return at_[rank] > send ? Wait{} : Wait{rank, send, -1};
  }

  // Joins the exchanges that are due here, one after the other. Without `runnable`, only looks.
  Wait Exchange(int r, std::vector<int>* runnable) {
    for (size_t& next = next_join_[r];
         next < joins_[r].size() && joins_[r][next].position <= at_[r]; ++next) {
      Join& join = joins_[r][next];
      int all = static_cast<int>(exchanges_[join.exchange].ranks.size());
      if (!join.joined && runnable) {
        join.joined = true;
        if (++joined_[join.exchange] == all * (join.step + 1)) {
          auto& waits = exchange_waits_[join.exchange];
          runnable->insert(runnable->end(), waits.begin(), waits.end());
          waits.clear();
        }
      }
      if (joined_[join.exchange] < all * (join.step + 1)) return {-1, -1, join.exchange};
    }
    return {};
  }

  void Wake(int r, std::vector<int>& runnable) {
    auto& waiters = waiting_[r];
    auto woken = std::partition(waiters.begin(), waiters.end(),
                                [&](const auto& w) { return w.first >= at_[r]; });
    for (auto w = woken; w != waiters.end(); ++w) runnable.push_back(w->second);
    waiters.erase(woken, waiters.end());
  }

  [[noreturn]] void Fail() {
    std::string where, blocked;
    int shown = 0;
    for (size_t r = 0; r < at_.size() && shown < 4; ++r) {
      if (static_cast<size_t>(at_[r]) == plan_.ranks[r].size()) continue;
      Wait wait = Blocked(static_cast<int>(r), nullptr);
      std::string place = PlaceText(static_cast<int>(r), at_[r], plan_.ranks[r][at_[r]]);
      if (where.empty()) where = place;
      blocked.append(shown++ ? "; " : "").append(place).append(" waits for ");
      if (wait.exchange >= 0) {
        std::string ranks;
        for (int other : exchanges_[wait.exchange].ranks)
          if (!Joined(other, wait.exchange)) ranks.append(" ").append(std::to_string(other));
        blocked += "the gradients of rank" + ranks;
      } else {
        blocked += PlaceText(wait.rank, wait.position, plan_.ranks[wait.rank][wait.position]);
      }
    }
    throw Error(where, "rule \"deadlock\": the plan never ends: " + blocked);
  }

  bool Joined(int rank, int exchange) const {
    int steps = 0;
    for (const Join& join : joins_[rank]) steps += join.exchange == exchange && join.joined;
    int all = static_cast<int>(exchanges_[exchange].ranks.size());
    return steps > joined_[exchange] / all;
  }

  struct Join {
    int step, exchange, position;
    bool joined = false;
  };

  const Plan& plan_;
  const StageGraph& graph_;
  const EdgeIndex& edges_;
  const TransferIndex& transfers_;
  std::vector<int> at_;                                    // [rank] -> the action it is at
  std::vector<std::vector<std::pair<int, int>>> waiting_;  // [rank] -> (position, who waits)
  std::vector<ReduceExchange> exchanges_;
  std::vector<int> joined_;                       // [exchange], over all steps
  std::vector<std::vector<int>> exchange_waits_;  // [exchange] -> ranks
  std::vector<std::vector<Join>> joins_;          // [rank], in order
  std::vector<size_t> next_join_;                 // [rank]
};

}  // namespace

void CheckRendezvous(const Plan& plan, const StageGraph& graph, const EdgeIndex& edges,
                     const TransferIndex& transfers) {
  Rendezvous(plan, graph, edges, transfers).Run();
}

}  // namespace pipewright
