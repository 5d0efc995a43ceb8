// Measures processor time and memory of planning, lowering, validating and simulating for growing
// numbers of ranks and microbatches: the time per action should stay constant.
//   plan_scale                       prints a table
//   plan_scale NAME RANKS MICROBATCHES   prints one row
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/schedules/schedule.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/measure.h"
#include "plan/stage_graph.h"

using namespace pipewright;

namespace {

// Returns the processor time of this process: everything here runs on one core.
double Seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

void Row(const std::string& name, int ranks, int microbatches) {
  double start = Seconds();
  Plan plan;
  double made = 0, lowered = 0, validated = 0;
  {
    Plan schedule = MakeSchedule(name, ranks, 0, microbatches, {});
    StageGraph graph = ChainGraph(ParsePlacement(DefaultPlacement(name), ranks, schedule.stages));
    made = Seconds();
    plan = Lower(schedule, graph);
    lowered = Seconds();
    Validate(plan, graph);
    validated = Seconds();
  }
  Costs costs;
  costs.stages.resize(1);
  costs.stages[0].F = costs.stages[0].I = costs.stages[0].W = 1, costs.stages[0].B = 2;
  Figures figures = Measure(plan, costs, Simulate(plan, costs));
  double end = Seconds();
  size_t actions = 0;
  for (const auto& list : plan.ranks) actions += list.size();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%-11s %5d %6d %10zu %7.2f %7.2f %7.2f %7.2f %7.2f %8.0f %9ld\n", name.c_str(), ranks,
              microbatches, actions, made - start, lowered - made, validated - lowered,
              end - validated, end - start, 1e9 * (end - start) / static_cast<double>(actions),
              usage.ru_maxrss / 1024);
  std::fflush(stdout);
  if (figures.makespan <= 0) std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  std::printf("%-11s %5s %6s %10s %7s %7s %7s %7s %7s %8s %9s\n", "schedule", "ranks", "microb",
              "actions", "make s", "lower s", "valid s", "simul s", "all s", "ns/action",
              "peak MiB");
  if (argc == 4) {
    Row(argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
    return 0;
  }
  for (const char* name : {"1f1b", "interleaved", "zb1p", "v-half", "dualpipe", "hanayo"})
    for (auto [ranks, microbatches] : {std::pair{16, 256}, {64, 256}, {64, 1024}})
      Row(name, ranks, microbatches);
  return 0;
}
