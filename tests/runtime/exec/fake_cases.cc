#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include "plan/actions.h"
#include "plan/lowering/lower.h"
#include "plan/multi_step.h"
#include "plan/plan_text.h"
#include "plan/schedules/schedule.h"
#include "plan/stage_graph.h"
#include "tests/runtime/exec/fake_model.h"

namespace pipewright {

namespace {

// Returns a group over all replicas for each entry of graph.shared, then one for each replicated
// stage.
std::vector<SharedGroup> GroupsOf(const StageGraph& graph) {
  std::vector<SharedGroup> groups;
  auto add = [&](const std::vector<int>& stages) {
    groups.emplace_back();
    for (int s : stages)
      for (int r : graph.ranks_of[s]) groups.back().push_back({s, r});
  };
  for (const auto& stages : graph.shared) add(stages);
  for (int s = 0; s < graph.stages; ++s)
    if (graph.ranks_of[s].size() > 1) add({s});
  return groups;
}

Action Make(ActionKind kind, int stage, int microbatch, int peer = -1) {
  Action a;
  a.kind = kind, a.stage = stage, a.microbatch = microbatch, a.peer = peer;
  return a;
}

// Computes in an order drawn at random from everything that can run; both sides post every transfer
// when its data is made.
class RandomOrder {
 public:
  RandomOrder(const StageGraph& graph, int microbatches, bool split, std::mt19937& random)
      : graph_(graph), edges_(IndexEdges(graph)), microbatches_(microbatches), random_(random) {
    plan_.stages = graph.stages;
    plan_.microbatches = microbatches;
    plan_.ranks.resize(graph.ranks);
    std::vector<Action> waiting;
    for (int m = 0; m < microbatches; ++m) {
      for (int s = 0; s < graph.stages; ++s) {
        waiting.push_back(Make(ActionKind::kForward, s, m));
        if (split && random() % 2) {
          waiting.push_back(Make(ActionKind::kInputGrad, s, m));
          waiting.push_back(Make(ActionKind::kWeightGrad, s, m));
        } else {
          waiting.push_back(Make(ActionKind::kBackward, s, m));
        }
      }
    }
    while (!waiting.empty()) {
      std::vector<size_t> ready;
      for (size_t i = 0; i < waiting.size(); ++i)
        if (Ready(waiting[i])) ready.push_back(i);
      size_t chosen = ready[random() % ready.size()];
      Run(waiting[chosen]);
      waiting.erase(waiting.begin() + chosen);
    }
    Finish();
  }

  Plan plan_;

 private:
  bool Ready(const Action& a) {
    int s = a.stage, m = a.microbatch;
    if (a.kind == ActionKind::kForward) {
      for (int e : edges_.in[s])
        if (!forward_.count({graph_.edges[e].from, m})) return false;
      return true;
    }
    if (a.kind == ActionKind::kWeightGrad) return backward_.count({s, m});
    for (int e : edges_.out[s])
      if (graph_.edges[e].gradient && !backward_.count({graph_.edges[e].to, m})) return false;
    return forward_.count({s, m});
  }

  void Transfer(bool backward, int from, int to, int m) {
    int source = RankOf(graph_, from, m), target = RankOf(graph_, to, m);
    if (source == target) return;
    plan_.ranks[source].push_back(
        Make(backward ? ActionKind::kSendBackward : ActionKind::kSendForward, from, m, to));
    plan_.ranks[target].push_back(
        Make(backward ? ActionKind::kRecvBackward : ActionKind::kRecvForward, to, m, from));
  }

  void Run(const Action& a) {
    int s = a.stage, m = a.microbatch;
    plan_.ranks[RankOf(graph_, s, m)].push_back(a);
    if (a.kind == ActionKind::kForward) {
      forward_.insert({s, m});
      for (int e : edges_.out[s]) Transfer(false, s, graph_.edges[e].to, m);
    } else if (a.kind != ActionKind::kWeightGrad) {
      backward_.insert({s, m});
      for (int e : edges_.in[s])
        if (graph_.edges[e].gradient) Transfer(true, s, graph_.edges[e].from, m);
    }
  }

  void Finish() {
    for (ActionKind kind : {ActionKind::kReduceGrad, ActionKind::kStep})
      for (int s = 0; s < graph_.stages; ++s)
        for (int r : graph_.ranks_of[s]) plan_.ranks[r].push_back(Make(kind, s, -1));
  }

  const StageGraph& graph_;
  EdgeIndex edges_;
  int microbatches_;
  std::mt19937& random_;
  std::set<std::pair<int, int>> forward_, backward_;
};

}  // namespace

StageGraph SkipGraph(std::vector<std::vector<int>> ranks_of) {
  StageGraph graph = ChainGraph(std::move(ranks_of));
  for (int s = 2; s < graph.stages; ++s) {
    StageEdge edge;
    edge.from = 0, edge.to = s;
    graph.edges.push_back(edge);
    if (s >= 3) {
      edge.from = s - 2;
      edge.gradient = s % 2;
      graph.edges.push_back(edge);
    }
  }
  std::sort(graph.edges.begin(), graph.edges.end(), [](const StageEdge& a, const StageEdge& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  return graph;
}

FakeCase RandomCase(unsigned seed, int ranks) {
  std::mt19937 random(seed);
  auto draw = [&](int from, int to) { return from + static_cast<int>(random() % (to - from + 1)); };
  FakeCase c;
  c.graph.stages = draw(1, 8);
  c.graph.ranks = ranks;
  for (int s = 0; s < c.graph.stages; ++s) {
    std::vector<int> all(ranks);
    for (int r = 0; r < ranks; ++r) all[r] = r;
    std::shuffle(all.begin(), all.end(), random);
    all.resize(draw(0, 3) ? 1 : draw(1, std::min(ranks, 3)));
    c.graph.ranks_of.push_back(all);
    for (int from = 0; from < s; ++from) {
      if (draw(0, 2) && from != s - 1) continue;
      StageEdge edge;
      edge.from = from, edge.to = s;
      edge.gradient = draw(0, 4) != 0;
      c.graph.edges.push_back(edge);
    }
  }
  std::sort(c.graph.edges.begin(), c.graph.edges.end(), [](const StageEdge& a, const StageEdge& b) {
    return std::pair(a.from, a.to) < std::pair(b.from, b.to);
  });
  for (int g = draw(0, 2); g > 0; --g) {
    std::vector<int> stages;
    for (int s = 0; s < c.graph.stages; ++s)
      if (draw(0, 1)) stages.push_back(s);
    if (stages.size() > 1) c.graph.shared.push_back(stages);
  }
  c.groups = GroupsOf(c.graph);
  for (SharedGroup& group : c.groups) {
    if (draw(0, 1)) group[draw(0, static_cast<int>(group.size()) - 1)].sums = true;
    if (draw(0, 1))
      for (SharedHolder& holder : group) holder.term = holder.stage;
  }
  c.plan = RandomOrder(c.graph, draw(1, 5), draw(0, 1), random).plan_;
  c.steps = draw(1, 3);
  return c;
}

FakeCase ScheduleCase(const std::string& schedule, const StageGraph& graph, int microbatches,
                      int plan_steps) {
  FakeCase c;
  c.graph = graph;
  c.groups = GroupsOf(graph);
  Plan order = MakeSchedule(schedule, graph.ranks, graph.stages, microbatches, graph.ranks_of);
  if (plan_steps > 1) {
    c.graph.microbatches = microbatches;
    order = Unroll(Synchronous(order), plan_steps);
  }
  c.plan = Lower(order, c.graph);
  return c;
}

FakeCase EveryKindCase() {
  FakeCase c;
  c.offloads = true;
  c.graph = ChainGraph({{0}, {1}, {2}});
  c.graph.shared = {{0, 2}};
  c.groups = GroupsOf(c.graph);
  c.plan = Lower(ReadPlan("0F0,0F1,(0F2;0B0)OVERLAP_F_B,0I1,0W1,0B2,0REDUCE_GRAD,0STEP\n"
                          "1F0,1B0,1F1,1I1,1W1,1F2,1B2,1STEP\n"
                          "2F0,2B0,2F1,2I1,2W1,2F2,2B2,2REDUCE_GRAD,2STEP\n",
                          "every kind"),
                 c.graph);
  auto around = [&](int rank, ActionKind first, ActionKind last) {
    auto& actions = c.plan.ranks[rank];
    actions.insert(actions.begin(), Make(first, rank, -1));
    actions.push_back(Make(last, rank, -1));
  };
  around(0, ActionKind::kLoad, ActionKind::kEvict);
  around(1, ActionKind::kUnshard, ActionKind::kReshard);
  c.steps = 3;
  return c;
}

}  // namespace pipewright
