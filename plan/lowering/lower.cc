#include "plan/lowering/lower.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/compute_index.h"
#include "plan/lowering/reduce_order.h"
#include "plan/lowering/step_legality.h"
#include "plan/simulate/compute_times.h"
#include "plan/stage_graph.h"

namespace pipewright {

namespace {

// A message to the rank that is being lowered.
struct Incoming {
  // Position in the global order of sends: end of the producer, its rank, index among its sends.
  int64_t time = 0;
  int source_rank = -1;
  bool backward = false;
  int from = -1, to = -1;  // the stages that send and receive
  int microbatch = -1;
  int edge = -1;     // numbered on this rank, one for each (from, to)
  int latest = 0;    // its RECV must precede this compute
  int consumer = 0;  // index of the compute that uses it
  int gap = 0, slot = 0;

  auto Key() const { return std::tuple(time, source_rank, backward, to, from); }
};

using Heap = std::priority_queue<std::pair<int, int>, std::vector<std::pair<int, int>>,
                                 std::greater<std::pair<int, int>>>;

class Lowering {
 public:
  Lowering(const Plan& schedule, const StageGraph& graph)
      : plan_(schedule),
        graph_(graph),
        edges_(IndexEdges(graph)),
        index_(IndexCompute(schedule, graph)),
        ends_(UnitEnds(schedule, graph)),
        channel_(graph.ranks) {}

  std::vector<Action> LowerRank(int rank) {
    std::vector<Incoming> messages = Collect(rank);
    Post(messages);
    std::stable_sort(messages.begin(), messages.end(),
                     [](const Incoming& a, const Incoming& b) { return a.gap < b.gap; });
    const std::vector<Action>& computes = plan_.ranks[rank];
    std::vector<int> step_ends;
    if (!index_.backward.empty()) step_ends = StepEnds(plan_, rank);
    std::vector<Action> out;
    out.reserve(computes.size() + 2 * messages.size() + 4);
    auto next = messages.begin();
    size_t step = 0;
    for (size_t k = 0;; ++k) {
      for (; next != messages.end() && next->gap == static_cast<int>(k); ++next)
        out.push_back(Receive(*next));
      if (k > 0) AppendSends(computes[k - 1], rank, out);
      for (; step < step_ends.size() && step_ends[step] == static_cast<int>(k); ++step)
        AppendStep(rank, out);
      if (k == computes.size()) break;
      out.push_back(computes[k]);
    }
    out.shrink_to_fit();
    return out;
  }

 private:
  // Adds a message with the compute and rank of its producer, in the global order.
  void Add(int rank, int from, int to, bool backward, int microbatch, int edge,
           std::vector<Incoming>& out) {
    const auto& table = backward ? index_.backward : index_.forward;
    ComputePlace producer = table[index_.At(from, microbatch)];
    if (producer.rank == rank) return;
    Incoming m;
    m.time = ends_[producer.rank][producer.position];
    m.source_rank = producer.rank;
    m.backward = backward;
    m.from = from, m.to = to;
    m.microbatch = microbatch;
    m.edge = edge;
    m.consumer = table[index_.At(to, microbatch)].position;
    // Actions that end at the same time do not free the slot in time for the data.
    const auto& own = ends_[rank];
    m.latest = static_cast<int>(std::lower_bound(own.begin(), own.end(), m.time) - own.begin());
    out.push_back(m);
  }

  // Visits the microbatches of replica number `first` of r, over all steps.
  template <typename Do>
  void ForOwn(int first, int r, Do act) {
    for (int step = 0; step < plan_.steps; ++step)
      for (int i = first; i < plan_.microbatches; i += r) act(step * plan_.microbatches + i);
  }

  std::vector<Incoming> Collect(int rank) {
    std::vector<Incoming> messages;
    int edge = 0;
    for (int s = 0; s < graph_.stages; ++s) {
      const auto& replicas = graph_.ranks_of[s];
      auto at = std::find(replicas.begin(), replicas.end(), rank);
      if (at == replicas.end()) continue;
      int first = static_cast<int>(at - replicas.begin()), r = static_cast<int>(replicas.size());
      for (int e : edges_.in[s]) {
        ForOwn(first, r,
               [&](int i) { Add(rank, graph_.edges[e].from, s, false, i, edge, messages); });
        ++edge;
      }
      for (int e : edges_.out[s]) {
        if (!graph_.edges[e].gradient || index_.backward.empty()) continue;
        ForOwn(first, r, [&](int i) { Add(rank, graph_.edges[e].to, s, true, i, edge, messages); });
        ++edge;
      }
    }
    edges_here_ = edge;
    std::sort(messages.begin(), messages.end(),
              [](const Incoming& a, const Incoming& b) { return a.Key() < b.Key(); });
    return messages;
  }

  // Assigns each message a slot and the earliest place of its RECV.
  void Post(std::vector<Incoming>& messages) {
    std::vector<Heap> taken(edges_here_);  // consumers of the slots in use
    std::vector<int> slots(edges_here_);
    for (const Incoming& m : messages) {
      Heap& heap = taken[m.edge];
      while (!heap.empty() && heap.top().first < m.latest) heap.pop();
      heap.push({m.consumer, 0});
      slots[m.edge] = std::max(slots[m.edge], static_cast<int>(heap.size()));
    }
    std::vector<Heap> free(edges_here_);  // (gap from which it is free, slot)
    for (int e = 0; e < edges_here_; ++e)
      for (int i = 0; i < slots[e]; ++i) free[e].push({0, i});
    std::fill(channel_.begin(), channel_.end(), 0);
    for (Incoming& m : messages) {
      auto [gap, slot] = free[m.edge].top();
      free[m.edge].pop();
      m.slot = slot;
      m.gap = channel_[m.source_rank] = std::max(gap, channel_[m.source_rank]);
      free[m.edge].push({m.consumer + 1, slot});
    }
  }

  static Action Receive(const Incoming& m) {
    Action a;
    a.kind = m.backward ? ActionKind::kRecvBackward : ActionKind::kRecvForward;
    a.stage = m.to, a.peer = m.from;
    a.microbatch = m.microbatch;
    a.slot = m.slot;
    return a;
  }

  // Sends of one compute are ordered as in Incoming::Key.
  void AppendSends(const Action& compute, int rank, std::vector<Action>& out) {
    auto send = [&](ActionKind kind, int from, int to, int microbatch) {
      if (RankOf(graph_, to, microbatch) == rank) return;
      Action a;
      a.kind = kind;
      a.stage = from, a.peer = to;
      a.microbatch = microbatch;
      out.push_back(a);
    };
    if (HasForward(compute))
      for (int e : edges_.out[compute.stage])
        send(ActionKind::kSendForward, compute.stage, graph_.edges[e].to, compute.microbatch);
    if (HasBackward(compute)) {
      int s = BackwardStage(compute);
      for (int e : edges_.in[s])
        if (graph_.edges[e].gradient)
          send(ActionKind::kSendBackward, s, graph_.edges[e].from, BackwardMicrobatch(compute));
    }
  }

  void AppendStep(int rank, std::vector<Action>& out) {
    if (reduce_.empty()) reduce_ = ReduceOrder(graph_), stages_of_ = StagesOf();
    for (int s : reduce_[rank]) {
      Action a;
      a.kind = ActionKind::kReduceGrad, a.stage = s;
      out.push_back(a);
    }
    for (int s : stages_of_[rank]) {
      Action a;
      a.kind = ActionKind::kStep, a.stage = s;
      out.push_back(a);
    }
  }

  std::vector<std::vector<int>> StagesOf() {
    std::vector<std::vector<int>> stages(graph_.ranks);
    for (int s = 0; s < graph_.stages; ++s)
      for (int r : graph_.ranks_of[s]) stages[r].push_back(s);
    return stages;
  }

  const Plan& plan_;
  const StageGraph& graph_;
  EdgeIndex edges_;
  ComputeIndex index_;
  std::vector<std::vector<int64_t>> ends_;
  std::vector<int> channel_;  // by source rank: position of its last RECV
  int edges_here_ = 0;
  std::vector<std::vector<int>> reduce_, stages_of_;
};

}  // namespace

Plan Lower(const Plan& schedule, const StageGraph& stage_graph) {
  CheckGraph(stage_graph);
  StageGraph graph = stage_graph;
  graph.microbatches = schedule.microbatches;
  Plan plan = ComputeOnly(schedule);
  Lowering lowering(plan, graph);
  Plan out;
  out.stages = plan.stages;
  out.microbatches = plan.microbatches;
  out.steps = plan.steps;
  out.forward_only = plan.forward_only;
  if (!plan.forward_only) out.shared = graph.shared;
  out.recompute = plan.recompute;
  out.notes = schedule.notes;
  out.ranks.resize(plan.ranks.size());
  for (int r = 0; r < graph.ranks; ++r) out.ranks[r] = lowering.LowerRank(r);
  return out;
}

}  // namespace pipewright
