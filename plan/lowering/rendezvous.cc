#include "plan/lowering/rendezvous.h"

#include <algorithm>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/lowering/exchange_joins.h"

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
      : plan_(plan),
        graph_(graph),
        edges_(edges),
        transfers_(transfers),
        at_(plan.ranks.size(), 0),
        waiting_(plan.ranks.size()),
        joins_(plan, graph) {}

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
          joins_.Wait(wait.exchange, r);
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
  // Joins the exchanges that are due. Without `runnable`, only looks.
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
    if (a.kind == ActionKind::kReduceGrad)
      return {-1, -1, runnable ? joins_.Join(r, at_[r], *runnable) : joins_.MissingAt(r, at_[r])};
    return {};
  }

  Wait Unsent(const std::vector<int32_t>& sends, int edge, int from, int microbatch) const {
    int send = sends[transfers_.At(edge, microbatch)];
    if (send < 0) return {};
    int rank = RankOf(graph_, from, microbatch);
    return at_[rank] > send ? Wait{} : Wait{rank, send, -1};
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
        for (int other : joins_.Missing(wait.exchange))
          ranks.append(" ").append(std::to_string(other));
        blocked += "the gradients of rank" + ranks;
      } else {
        blocked += PlaceText(wait.rank, wait.position, plan_.ranks[wait.rank][wait.position]);
      }
    }
    throw Error(where, "rule \"deadlock\": the plan never ends: " + blocked);
  }

  const Plan& plan_;
  const StageGraph& graph_;
  const EdgeIndex& edges_;
  const TransferIndex& transfers_;
  std::vector<int> at_;                                    // [rank] -> the action it is at
  std::vector<std::vector<std::pair<int, int>>> waiting_;  // [rank] -> (position, who waits)
  ExchangeJoins joins_;
};

}  // namespace

void CheckRendezvous(const Plan& plan, const StageGraph& graph, const EdgeIndex& edges,
                     const TransferIndex& transfers) {
  Rendezvous(plan, graph, edges, transfers).Run();
}

}  // namespace pipewright
