#include "plan/lowering/transfer_index.h"

#include <algorithm>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/plan_text.h"

namespace pipewright {

int EdgeOf(const StageGraph& graph, const EdgeIndex& edges, const Action& transfer) {
  int peer = PeerOf(transfer);
  bool forward =
      transfer.kind == ActionKind::kSendForward || transfer.kind == ActionKind::kRecvForward;
  bool from_here =
      transfer.kind == ActionKind::kSendForward || transfer.kind == ActionKind::kRecvBackward;
  int from = from_here ? transfer.stage : peer, to = from_here ? peer : transfer.stage;
  if (from < 0 || from >= graph.stages) return -1;
  const std::vector<int>& out = edges.out[from];
  auto at = std::lower_bound(out.begin(), out.end(), to,
                             [&](int e, int stage) { return graph.edges[e].to < stage; });
  if (at == out.end() || graph.edges[*at].to != to) return -1;
  return forward || graph.edges[*at].gradient ? *at : -1;
}

namespace {

std::string Stage(int stage) { return "stage " + std::to_string(stage); }

class Indexer {
 public:
  Indexer(const Plan& plan, const StageGraph& graph, const EdgeIndex& edges,
          const ComputeIndex& computes)
      : plan_(plan), graph_(graph), edges_(edges), computes_(computes) {
    index_.total = computes.total;
    size_t cells = graph.edges.size() * static_cast<size_t>(computes.total);
    index_.send_forward.assign(cells, -1);
    index_.recv_forward.assign(cells, -1);
    if (!computes.backward.empty()) {
      index_.send_backward.assign(cells, -1);
      index_.recv_backward.assign(cells, -1);
    }
  }

  TransferIndex Run() {
    for (size_t r = 0; r < plan_.ranks.size(); ++r)
      for (size_t p = 0; p < plan_.ranks[r].size(); ++p)
        if (IsTransfer(plan_.ranks[r][p].kind)) Put(static_cast<int>(r), static_cast<int>(p));
    for (size_t e = 0; e < graph_.edges.size(); ++e) CheckEdge(static_cast<int>(e));
    for (size_t r = 0; r < plan_.ranks.size(); ++r) CheckRank(static_cast<int>(r));
    return std::move(index_);
  }

 private:
  std::vector<int32_t>& Table(ActionKind kind) {
    switch (kind) {
      case ActionKind::kSendForward:
        return index_.send_forward;
      case ActionKind::kRecvForward:
        return index_.recv_forward;
      case ActionKind::kSendBackward:
        return index_.send_backward;
      default:
        return index_.recv_backward;
    }
  }

  // Returns the compute at this end of the transfer, which makes the data or uses it.
  ComputePlace ComputeOf(const Action& a) const {
    bool forward = a.kind == ActionKind::kSendForward || a.kind == ActionKind::kRecvForward;
    return (forward ? computes_.forward : computes_.backward)[computes_.At(a.stage, a.microbatch)];
  }

  void Put(int rank, int position) {
    const Action& a = plan_.ranks[rank][position];
    auto fail = [&](const std::string& what) { throw Error(PlaceText(rank, position, a), what); };
    int edge = EdgeOf(graph_, edges_, a);
    bool backward = a.kind == ActionKind::kSendBackward || a.kind == ActionKind::kRecvBackward;
    if (edge < 0 || (backward && computes_.backward.empty()))
      fail("rule \"transfer\": no " + std::string(backward ? "gradient" : "value") +
           " goes between " + Stage(a.stage) + " and " + Stage(PeerOf(a)));
    ComputePlace compute = ComputeOf(a);
    if (compute.rank != rank)
      fail("rule \"rank\": " + Stage(a.stage) + " runs microbatch " + std::to_string(a.microbatch) +
           " on rank " + std::to_string(compute.rank));
    if (RankOf(graph_, PeerOf(a), a.microbatch) == rank)
      fail("rule \"transfer\": " + Stage(PeerOf(a)) +
           " is on the same rank and takes its data without one");
    int32_t& entry = Table(a.kind)[index_.At(edge, a.microbatch)];
    if (entry >= 0)
      fail("rule \"once\": it is already at " + PlaceText(rank, entry, plan_.ranks[rank][entry]));
    if (IsSend(a.kind) ? position < compute.position : position > compute.position)
      fail(std::string("rule \"order\": it comes ") + (IsSend(a.kind) ? "before " : "after ") +
           PlaceText(rank, compute.position, plan_.ranks[rank][compute.position]) + ", which " +
           (IsSend(a.kind) ? "makes" : "uses") + " its data");
    entry = position;
  }

  // Checks both ends of every message, and the order of data that stay on one rank.
  void CheckEdge(int e) {
    const StageEdge& edge = graph_.edges[e];
    for (int i = 0; i < index_.total; ++i) {
      size_t at = index_.At(e, i);
      CheckMessage(computes_.forward, edge.from, edge.to, i, false, index_.send_forward[at],
                   index_.recv_forward[at]);
      if (edge.gradient && !computes_.backward.empty())
        CheckMessage(computes_.backward, edge.to, edge.from, i, true, index_.send_backward[at],
                     index_.recv_backward[at]);
    }
  }

  void CheckMessage(const std::vector<ComputePlace>& table, int from, int to, int microbatch,
                    bool backward, int32_t send, int32_t recv) {
    ComputePlace producer = table[computes_.At(from, microbatch)];
    ComputePlace consumer = table[computes_.At(to, microbatch)];
    if (producer.rank == consumer.rank) {
      if (producer.position > consumer.position)
        throw Error(PlaceText(consumer.rank, consumer.position,
                              plan_.ranks[consumer.rank][consumer.position]),
                    "rule \"order\": it needs " +
                        ToText(plan_.ranks[producer.rank][producer.position]) +
                        ", which comes later on the same rank");
      return;
    }
    bool sends = send < 0;
    if (send >= 0 && recv >= 0) return;
    ComputePlace at = sends ? producer : consumer;
    Action missing;
    missing.kind = sends ? (backward ? ActionKind::kSendBackward : ActionKind::kSendForward)
                         : (backward ? ActionKind::kRecvBackward : ActionKind::kRecvForward);
    missing.stage = sends ? from : to, missing.peer = sends ? to : from;
    missing.microbatch = microbatch;
    throw Error(PlaceText(at.rank, at.position, plan_.ranks[at.rank][at.position]),
                "rule \"transfer\": " + ToText(missing) + " is missing on this rank");
  }

  void CheckRank(int rank) {
    std::vector<int32_t> last_send(plan_.ranks.size(), -1), last_recv(plan_.ranks.size(), -1);
    std::vector<std::vector<int32_t>>
        used;                               // [edge on this rank][slot] -> position of its consumer
    std::vector<std::pair<int, int>> keys;  // (edge, direction) of each row of `used`
    const auto& actions = plan_.ranks[rank];
    for (size_t p = 0; p < actions.size(); ++p) {
      const Action& a = actions[p];
      if (!IsRecv(a.kind)) continue;
      bool backward = a.kind == ActionKind::kRecvBackward;
      int edge = EdgeOf(graph_, edges_, a);
      int source = RankOf(graph_, PeerOf(a), a.microbatch);
      int32_t send =
          (backward ? index_.send_backward : index_.send_forward)[index_.At(edge, a.microbatch)];
      if (send < last_send[source])
        throw Error(PlaceText(rank, p, a),
                    "rule \"channel\": rank " + std::to_string(source) + " sends it before what " +
                        PlaceText(rank, last_recv[source], actions[last_recv[source]]) +
                        " receives");
      last_send[source] = send, last_recv[source] = static_cast<int32_t>(p);
      if (a.slot < 0) continue;
      if (a.slot >= index_.total)
        throw Error(PlaceText(rank, p, a),
                    "rule \"range\": there are never more buffers of an edge "
                    "than microbatches (" +
                        std::to_string(index_.total) + ")");
      CheckSlot(rank, static_cast<int>(p), {edge, backward}, keys, used);
    }
  }

  void CheckSlot(int rank, int position, std::pair<int, int> key,
                 std::vector<std::pair<int, int>>& keys, std::vector<std::vector<int32_t>>& used) {
    const Action& a = plan_.ranks[rank][position];
    size_t row = static_cast<size_t>(std::find(keys.begin(), keys.end(), key) - keys.begin());
    if (row == keys.size()) keys.push_back(key), used.emplace_back();
    if (used[row].size() <= static_cast<size_t>(a.slot)) used[row].resize(a.slot + 1, -1);
    int32_t& until = used[row][a.slot];
    if (until > position)
      throw Error(PlaceText(rank, position, a),
                  "rule \"slot\": buffer " + std::to_string(a.slot) + " holds data until " +
                      PlaceText(rank, until, plan_.ranks[rank][until]));
    until = ComputeOf(a).position;
  }

  const Plan& plan_;
  const StageGraph& graph_;
  const EdgeIndex& edges_;
  const ComputeIndex& computes_;
  TransferIndex index_;
};

}  // namespace

TransferIndex IndexTransfers(const Plan& plan, const StageGraph& graph, const EdgeIndex& edges,
                             const ComputeIndex& computes) {
  return Indexer(plan, graph, edges, computes).Run();
}

}  // namespace pipewright
