#include "plan/lowering/in_order.h"

#include <algorithm>
#include <climits>
#include <map>
#include <vector>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/compute_index.h"
#include "plan/lowering/exchange_joins.h"
#include "plan/lowering/transfer_index.h"
#include "plan/stage_graph.h"

namespace pipewright {

namespace {

constexpr size_t kMostShown = 4;  // waits in a message

struct ActionQueue {
  int rank = 0;
  std::vector<int> positions;  // in the rank's list
  size_t next = 0;
  std::vector<std::pair<int, int>> waiting;  // (position, queue that waits until this is past it)

  int Head() const { return next < positions.size() ? positions[next] : INT_MAX; }
};

// A queue waits until `queue` is past `position`, or until all ranks have joined an exchange.
struct QueueWait {
  int queue = -1, position = -1;
  int exchange = -1;

  bool Exists() const { return queue >= 0 || exchange >= 0; }
};

class InOrder {
 public:
  InOrder(const Plan& plan, const StageGraph& graph, const EdgeIndex& edges,
          const TransferIndex& transfers, LinkQueues kind)
      : plan_(plan),
        graph_(graph),
        edges_(edges),
        transfers_(transfers),
        joins_(plan, graph),
        queues_(plan.ranks.size()),
        queue_of_(plan.ranks.size()) {
    for (size_t r = 0; r < plan.ranks.size(); ++r) MakeQueues(static_cast<int>(r), kind);
  }

  void Run() {
    std::vector<int> runnable;
    for (size_t q = queues_.size(); q-- > 0;) runnable.push_back(static_cast<int>(q));
    while (!runnable.empty()) {
      const int q = runnable.back();
      runnable.pop_back();
      Advance(q, runnable);
    }
    for (size_t q = 0; q < queues_.size(); ++q)
      if (queues_[q].Head() != INT_MAX) Fail(static_cast<int>(q));
  }

 private:
  // Queue r is that of rank r's computes; those of its transfers follow all ranks'.
  void MakeQueues(int rank, LinkQueues kind) {
    std::map<std::pair<int, bool>, int> found;
    const auto& actions = plan_.ranks[rank];
    for (size_t p = 0; p < actions.size(); ++p) {
      const Action& a = actions[p];
      int q = rank;
      if (IsTransfer(a.kind)) {
        const int peer = RankOf(graph_, PeerOf(a), a.microbatch);
        const bool backward =
            a.kind == ActionKind::kSendBackward || a.kind == ActionKind::kRecvBackward;
        const auto [at, is_new] =
            found.try_emplace({kind == LinkQueues::kDirections ? 0 : peer,
                               kind == LinkQueues::kChannels ? IsSend(a.kind) : backward},
                              static_cast<int>(queues_.size()));
        if (is_new) queues_.emplace_back();
        q = at->second;
      }
      queues_[q].rank = rank;
      queues_[q].positions.push_back(static_cast<int>(p));
      queue_of_[rank].push_back(q);
    }
  }

  void Advance(int q, std::vector<int>& runnable) {
    ActionQueue& queue = queues_[q];
    while (queue.Head() != INT_MAX) {
      const QueueWait wait = IsComputes(q) ? ComputeWait(q, &runnable) : TransferWait(q);
      if (wait.exchange >= 0) {
        joins_.Wait(wait.exchange, q);
        return;
      }
      if (wait.queue >= 0) {
        queues_[wait.queue].waiting.emplace_back(wait.position, q);
        return;
      }
      if (!IsComputes(q)) {
        const int other = OtherEnd(q).queue;
        Step(other, runnable);
        runnable.push_back(other);
      }
      Step(q, runnable);
    }
  }

  void Step(int q, std::vector<int>& runnable) {
    ++queues_[q].next;
    const int head = queues_[q].Head();
    auto& waiting = queues_[q].waiting;
    auto woken = std::partition(waiting.begin(), waiting.end(),
                                [&](const auto& w) { return w.first >= head; });
    for (auto w = woken; w != waiting.end(); ++w) runnable.push_back(w->second);
    waiting.erase(woken, waiting.end());
  }

  bool IsComputes(int q) const { return q < static_cast<int>(plan_.ranks.size()); }
  const Action& HeadOf(int q) const { return plan_.ranks[queues_[q].rank][queues_[q].Head()]; }

  // Joins the exchanges that are due. Without `runnable`, only looks.
  QueueWait ComputeWait(int q, std::vector<int>* runnable) {
    const Action& a = HeadOf(q);
    if (HasForward(a))
      for (int e : edges_.in[a.stage]) {
        const QueueWait wait = Unreceived(q, transfers_.recv_forward, e, a.microbatch);
        if (wait.Exists()) return wait;
      }
    if (HasBackward(a) && !transfers_.recv_backward.empty())
      for (int e : edges_.out[BackwardStage(a)]) {
        const QueueWait wait = Unreceived(q, transfers_.recv_backward, e, BackwardMicrobatch(a));
        if (wait.Exists()) return wait;
      }
    if (a.kind != ActionKind::kReduceGrad) return {};
    const int head = queues_[q].Head();
    return {-1, -1, runnable ? joins_.Join(q, head, *runnable) : joins_.MissingAt(q, head)};
  }

  QueueWait Unreceived(int rank, const std::vector<int32_t>& receives, int edge,
                       int microbatch) const {
    const int position = receives[transfers_.At(edge, microbatch)];
    return position < 0 ? QueueWait{} : Until(queue_of_[rank][position], position);
  }

  QueueWait TransferWait(int q) const {
    const int head = queues_[q].Head();
    const QueueWait other = OtherEnd(q);
    for (const QueueWait& wait :
         {Until(queues_[q].rank, head), Until(other.queue, other.position - 1),
          Until(queues_[other.queue].rank, other.position)})
      if (wait.Exists()) return wait;
    return {};
  }

  // Returns no wait if the queue is past the position.
  QueueWait Until(int q, int position) const {
    return queues_[q].Head() > position ? QueueWait{} : QueueWait{q, position};
  }

  // Returns the queue and position of the other end of the transfer that is first in a queue.
  QueueWait OtherEnd(int q) const {
    const Action& a = HeadOf(q);
    const size_t at = transfers_.At(EdgeOf(graph_, edges_, a), a.microbatch);
    const int rank = RankOf(graph_, PeerOf(a), a.microbatch);
    const int position = a.kind == ActionKind::kSendForward    ? transfers_.recv_forward[at]
                         : a.kind == ActionKind::kRecvForward  ? transfers_.send_forward[at]
                         : a.kind == ActionKind::kSendBackward ? transfers_.recv_backward[at]
                                                               : transfers_.send_backward[at];
    return {queue_of_[rank][position], position};
  }

  std::string Place(int q, int position) const {
    const int rank = queues_[q].rank;
    return PlaceText(rank, position, plan_.ranks[rank][position]);
  }

  // Returns what the head of a queue waits for, as text.
  std::string WaitText(int q, const QueueWait& wait) const {
    const std::string text = Place(q, queues_[q].Head()) + " waits for ";
    if (wait.exchange >= 0) {
      std::string ranks;
      for (int rank : joins_.Missing(wait.exchange)) ranks += " " + std::to_string(rank);
      return text + "the gradients of rank" + ranks;
    }
    const ActionQueue& other = queues_[wait.queue];
    const auto after =
        std::upper_bound(other.positions.begin(), other.positions.end(), wait.position);
    // Two transfers meet; anything else is over before what waits for it.
    const int awaited = IsComputes(q) || IsComputes(wait.queue) ? after[-1] : *after;
    return text + Place(wait.queue, awaited) +
           (awaited > other.Head() ? ", behind " + Place(wait.queue, other.Head()) : "");
  }

  // Follows the waits from `q` until they come back to a queue, or one is at its end.
  [[noreturn]] void Fail(int q) {
    std::vector<int> path;
    std::vector<QueueWait> waits;
    auto seen = path.end();
    while (queues_[q].Head() != INT_MAX &&
           (seen = std::find(path.begin(), path.end(), q)) == path.end()) {
      path.push_back(q);
      waits.push_back(IsComputes(q) ? ComputeWait(q, nullptr) : TransferWait(q));
      const QueueWait& wait = waits.back();
      q = wait.exchange >= 0 ? joins_.Missing(wait.exchange).front() : wait.queue;
    }
    const size_t first = queues_[q].Head() == INT_MAX ? 0 : seen - path.begin();
    std::string text;
    for (size_t i = first; i < path.size() && i < first + kMostShown; ++i)
      text += (i > first ? "; " : "") + WaitText(path[i], waits[i]);
    throw Error(Place(path[first], queues_[path[first]].Head()),
                "rule \"in order\": over links that keep the order of messages, the plan never "
                "ends: " +
                    text);
  }

  const Plan& plan_;
  const StageGraph& graph_;
  const EdgeIndex& edges_;
  const TransferIndex& transfers_;
  ExchangeJoins joins_;
  std::vector<ActionQueue> queues_;
  std::vector<std::vector<int>> queue_of_;  // [rank][position]
};

}  // namespace

std::optional<std::string> InOrderProblem(const Plan& plan, const StageGraph& stage_graph,
                                          LinkQueues queues) {
  StageGraph graph = stage_graph;
  graph.microbatches = plan.microbatches;
  try {
    const EdgeIndex edges = IndexEdges(graph);
    const TransferIndex transfers = IndexTransfers(plan, graph, edges, IndexCompute(plan, graph));
    InOrder(plan, graph, edges, transfers, queues).Run();
  } catch (const Error& e) {
    return e.what();
  }
  return std::nullopt;
}

}  // namespace pipewright
