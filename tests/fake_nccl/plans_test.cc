// Plans run over the fake NCCL as plan/lowering/in_order.h says: the transfers of each queue by a
// communicator of its own, and computes that add numbers.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <tuple>

#include "nccl_ranks.h"
#include "plan/actions.h"
#include "plan/lowering/in_order.h"
#include "plan/lowering/lower.h"
#include "plan/schedules/table.h"
#include "plan/stage_graph.h"

namespace pipewright {

namespace {

using sim::Queue;

// Names a communicator: a channel (from, to), or a direction (-1, backward).
using LinkName = std::pair<int, int>;
// Names what a stage computes: backward, stage, microbatch.
using ValueName = std::tuple<bool, int, int>;

bool IsGradient(const Action& a) {
  return a.kind == ActionKind::kSendBackward || a.kind == ActionKind::kRecvBackward;
}

struct PlanOverLinks {
  const Plan& plan;
  const StageGraph& graph;
  LinkQueues queues = LinkQueues::kChannels;
  std::map<LinkName, NcclId> links;

  PlanOverLinks(const Plan& p, const StageGraph& g, LinkQueues q) : plan(p), graph(g), queues(q) {
    for (size_t r = 0; r < plan.ranks.size(); ++r)
      for (const Action& a : plan.ranks[r])
        if (IsTransfer(a.kind)) links.try_emplace(NameOf(static_cast<int>(r), a), NewId());
  }

  LinkName NameOf(int rank, const Action& a) const {
    const int peer = RankOf(graph, PeerOf(a), a.microbatch);
    if (queues == LinkQueues::kDirections) return {-1, IsGradient(a)};
    return IsSend(a.kind) ? LinkName{rank, peer} : LinkName{peer, rank};
  }
};

int32_t Mix(int32_t sum, const ValueName& name) {
  return sum * 31 + std::get<0>(name) * 7 + std::get<1>(name) * 17 + std::get<2>(name);
}

// Returns the names of what a compute adds.
std::vector<ValueName> InputsOf(const StageGraph& graph, const ValueName& name) {
  const auto& [backward, stage, microbatch] = name;
  std::vector<ValueName> inputs;
  if (backward) inputs.emplace_back(false, stage, microbatch);
  for (const StageEdge& e : graph.edges)
    if ((backward ? e.from : e.to) == stage)
      inputs.emplace_back(backward, backward ? e.to : e.from, microbatch);
  return inputs;
}

int32_t Expected(const StageGraph& graph, const ValueName& name) {
  int32_t sum = 0;
  for (const ValueName& input : InputsOf(graph, name)) sum += Expected(graph, input);
  return Mix(sum, name);
}

// One rank: the host only launches, and everything else happens on streams.
class PlanRank {
 public:
  PlanRank(const PlanOverLinks& run, int rank)
      : run_(run), rank_(rank), compute_(sim::NewQueue(rank % sim::DeviceCount())) {
    const int ranks = static_cast<int>(run.plan.ranks.size());
    for (const auto& [name, id] : run.links)
      if (name.first < 0)
        links_[name] = MakeRank(id, rank, ranks);
      else if (name.first == rank || name.second == rank)
        links_[name] = MakeRank(id, name.second == rank, 2);
  }

  // Uses each channel once, in the same order on all ranks: the host may block in it.
  void WarmUp() {
    for (auto& [name, link] : links_) {
      auto* at = EmptyOnDevice<int32_t>(*link.stream, 1);
      Transfer(link, name.first == rank_, at, 1 - link.rank);
    }
  }

  void Launch() {
    for (const Action& a : run_.plan.ranks[static_cast<size_t>(rank_)]) {
      if (IsTransfer(a.kind)) {
        const ValueName name{IsGradient(a), IsSend(a.kind) ? a.stage : PeerOf(a), a.microbatch};
        Move(a, name);
      }
      if (HasForward(a)) Compute({false, a.stage, a.microbatch});
      if (HasBackward(a)) Compute({true, BackwardStage(a), BackwardMicrobatch(a)});
    }
  }

  void Finish() {
    for (const auto& name : computed_)
      EXPECT_EQ(ToHost(*compute_, values_.at(name), 1)[0], Expected(run_.graph, name));
    for (auto& [name, link] : links_) {
      sim::Synchronize(*link.stream);
      CheckNccl(Nccl().CommDestroy(link.comm), "ncclCommDestroy", link.comm);
    }
  }

  bool IsStuck() const { return !sim::IsIdle(*compute_); }
  void Abort() {
    for (auto& [name, link] : links_) Nccl().CommAbort(link.comm);
    sim::Synchronize(*compute_);
  }

 private:
  static void Transfer(NcclRank& link, bool sends, int32_t* at, int peer) {
    if (sends)
      CheckNccl(Nccl().Send(at, 1, kNcclInt32, peer, link.comm, link.stream), "ncclSend",
                link.comm);
    else
      CheckNccl(Nccl().Recv(at, 1, kNcclInt32, peer, link.comm, link.stream), "ncclRecv",
                link.comm);
  }

  void Move(const Action& a, const ValueName& name) {
    const LinkName link_name = run_.NameOf(rank_, a);
    NcclRank& link = links_.at(link_name);
    const int peer = RankOf(run_.graph, PeerOf(a), a.microbatch);
    if (IsRecv(a.kind)) values_[name] = EmptyOnDevice<int32_t>(*compute_, 1);
    sim::Block(*link.stream, sim::Record(*compute_));
    Transfer(link, IsSend(a.kind), values_.at(name), link_name.first < 0 ? peer : 1 - link.rank);
    if (IsRecv(a.kind)) received_[name] = sim::Record(*link.stream);
  }

  void Compute(const ValueName& name) {
    const size_t bytes = sizeof(int32_t);
    int32_t* to = values_[name] = EmptyOnDevice<int32_t>(*compute_, 1);
    std::vector<const int32_t*> from;
    std::vector<sim::Access> accesses{{to, bytes, true}};
    for (const ValueName& input : InputsOf(run_.graph, name)) {
      if (received_.count(input)) sim::Block(*compute_, received_.at(input));
      from.push_back(values_.at(input));
      accesses.push_back({from.back(), bytes, false});
    }
    sim::Launch(
        *compute_, "compute",
        [=] {
          int32_t sum = 0;
          for (const int32_t* at : from) sum += *static_cast<int32_t*>(sim::ShadowOf(at));
          *static_cast<int32_t*>(sim::ShadowOf(to)) = Mix(sum, name);
        },
        accesses);
    computed_.push_back(name);
  }

  const PlanOverLinks& run_;
  int rank_;
  Queue* compute_;
  std::map<LinkName, NcclRank> links_;
  std::map<ValueName, int32_t*> values_;
  std::map<ValueName, std::shared_ptr<sim::Mark>> received_;
  std::vector<ValueName> computed_;
};

void OnRanks(const PlanOverLinks& run, const std::function<void(PlanRank&)>& act) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < static_cast<int>(run.plan.ranks.size()); ++rank)
    threads.emplace_back([&, rank] {
      try {
        PlanRank made(run, rank);
        act(made);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << rank << ": " << e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
}

struct PlanOfSchedule {
  StageGraph graph;
  Plan plan;

  PlanOfSchedule(const std::string& name, int ranks, int stages, int microbatches) {
    const StagePlacement placement = ParsePlacement(DefaultPlacement(name), ranks, stages);
    graph = ChainGraph(placement);
    graph.microbatches = microbatches;
    plan = Lower(MakeSchedule(name, ranks, stages, microbatches, placement), graph);
  }
};

}  // namespace

TEST(PlansOverNccl, EveryScheduleRunsOverChannels) {
  int runs = 0;
  for (const ScheduleKind& kind : Schedules())
    for (int ranks : {2, 4}) {
      if (!kind.make) continue;
      SCOPED_TRACE(std::string(kind.name) + " on " + std::to_string(ranks) + " ranks");
      const PlanOfSchedule made(kind.name, ranks, DefaultStages(kind.name, ranks), 8);
      OnRanks({made.plan, made.graph, LinkQueues::kChannels}, [](PlanRank& rank) {
        rank.WarmUp();
        rank.Launch();
        rank.Finish();
      });
      ++runs;
    }
  EXPECT_EQ(runs, 30);
}

// Two communicators, for values and gradients: a plan runs, or hangs, as the check says.
TEST(PlansOverNccl, TheCheckIsRightAboutDirections) {
  const ScopedVariable lazy("FAKE_NCCL_LAZY", "0");
  std::set<bool> seen;
  for (const auto& [name, ranks, stages] :
       std::vector<std::tuple<const char*, int, int>>{{"gpipe", 4, 4},
                                                      {"1f1b", 4, 4},
                                                      {"zb-h2", 4, 4},
                                                      {"interleaved", 2, 4},
                                                      {"zbv", 2, 4}}) {
    SCOPED_TRACE(name);
    const PlanOfSchedule made(name, ranks, stages, 8);
    const bool hangs = InOrderProblem(made.plan, made.graph, LinkQueues::kDirections).has_value();
    seen.insert(hangs);
    std::atomic<bool> stuck = false;
    std::barrier all(ranks);
    OnRanks({made.plan, made.graph, LinkQueues::kDirections}, [&](PlanRank& rank) {
      rank.Launch();
      if (!hangs) return rank.Finish();
      // An abort is an error for the others, so that it comes after all have launched and looked.
      all.arrive_and_wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      stuck = stuck || rank.IsStuck();
      all.arrive_and_wait();
      rank.Abort();
    });
    EXPECT_EQ(stuck, hangs);
  }
  EXPECT_EQ(seen.size(), 2u) << "no plan that runs, or none that hangs";
}

}  // namespace pipewright
