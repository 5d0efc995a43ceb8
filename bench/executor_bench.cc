// Measures the executor's cost per action when stages do nothing, in microseconds (median and
// quartiles): on one rank with 4 stages (all transfers are local), and on 4 ranks as threads (all
// transfers are messages of 8 bytes). With MPI: `mpirun -n N executor_bench mpi` on N ranks.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "plan/lowering/lower.h"
#include "plan/schedules/schedule.h"
#include "plan/stage_graph.h"
#include "runtime/exec/executor.h"
#include "runtime/transport/thread_transport.h"
#ifdef PIPEWRIGHT_MPI
#include "runtime/transport/mpi_transport.h"
#endif

using namespace pipewright;

namespace {

class EmptyBody : public StageBody {
 public:
  explicit EmptyBody(const StageGraph& graph) : edges_(IndexEdges(graph)) {}
  Bundle Allocate(int, int, bool, int, bool) override { return bundle_; }
  std::vector<Bundle> Forward(int stage, int, std::vector<Bundle>) override {
    return std::vector<Bundle>(edges_.out[stage].size(), bundle_);
  }
  std::vector<Bundle> Backward(ActionKind, int stage, int, std::vector<Bundle>) override {
    return std::vector<Bundle>(edges_.in[stage].size(), bundle_);
  }
  Bundle Gradient(int, int) override { return bundle_; }
  Bundle Scratch(int) override { return bundle_; }
  void Add(const Bundle&, const Bundle&) override {}
  void Copy(const Bundle&, const Bundle&) override {}
  void Step(int) override {}

 private:
  EdgeIndex edges_;
  std::shared_ptr<double> memory_ = std::make_shared<double>();
  Bundle bundle_{{{memory_.get(), sizeof(double)}}, memory_};
};

void Measure(const char* name, Transport& t, int stages, int microbatches) {
  std::vector<std::vector<int>> placement;
  for (int s = 0; s < stages; ++s) placement.push_back({s * t.size() / stages});
  StageGraph graph = ChainGraph(placement);
  Plan plan = Lower(MakeSchedule("gpipe", t.size(), stages, microbatches, placement), graph);
  EmptyBody body(graph);
  Executor executor(plan, graph, {}, body, t);
  std::vector<double> all, busy;
  for (int i = 0; i < 220; ++i) {
    executor.RunStep(i);
    if (i < 20) continue;
    const auto& trace = executor.trace();
    double waited = 0;
    for (const TraceEvent& event : trace) waited += event.waited;
    double total = trace.back().end - trace.front().start;
    all.push_back(1e6 * total / trace.size());
    busy.push_back(1e6 * (total - waited) / trace.size());
  }
  t.AllGather("");
  if (t.rank() > 0) return;
  std::sort(busy.begin(), busy.end());
  std::sort(all.begin(), all.end());
  size_t n = busy.size();
  printf(
      "%-22s %3d microbatches, %4zu actions: %6.2f us an action (%.2f-%.2f), with waiting %.2f\n",
      name, microbatches, plan.ranks[0].size(), busy[n / 2], busy[n / 4], busy[3 * n / 4],
      all[n / 2]);
}

}  // namespace

int main(int argc, char** argv) {
  auto measure = [](const char* name, Transport& t, int stages) {
    for (int microbatches : {1, 8, 64}) Measure(name, t, stages, microbatches);
  };
#ifdef PIPEWRIGHT_MPI
  if (argc > 1 && !strcmp(argv[1], "mpi"))
    return RunMpi(&argc, &argv, argv[0], [&](Transport& t) {
      measure("MPI", t, t.size());
      return kSuccess;
    });
#endif
  (void)argc, (void)argv;
  RunThreads(1, [&](Transport& t) { measure("1 rank, 4 stages", t, 4); });
  RunThreads(2, [&](Transport& t) { measure("2 threads", t, 2); });
  RunThreads(4, [&](Transport& t) { measure("4 threads", t, 4); });
}
