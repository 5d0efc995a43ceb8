// Compares plans byte for byte with tests/golden/plan. A change there changes what ranks do;
// PIPEWRIGHT_UPDATE_GOLDEN=1 rewrites the files, so that the differences can be read.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/files/read_file.h"
#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/multi_step.h"
#include "plan/plan_text.h"
#include "plan/schedules/schedule.h"
#include "plan/stage_graph.h"

namespace pipewright {
namespace {

struct Golden {
  const char* file;
  Plan plan;
  StageGraph graph;
};

Golden Named(const char* file, const std::string& name, int ranks, int microbatches) {
  int stages = DefaultStages(name, ranks);
  StageGraph graph = ChainGraph(ParsePlacement(DefaultPlacement(name), ranks, stages));
  return {file, Lower(MakeSchedule(name, ranks, stages, microbatches, {}), graph), graph};
}

// 1F1B with any stages, edges and groups.
Golden Shaped(const char* file, StageGraph graph, int microbatches) {
  Plan schedule = MakeSchedule("1f1b", graph.ranks, graph.stages, microbatches, graph.ranks_of);
  return {file, Lower(schedule, graph), graph};
}

std::vector<Golden> Goldens() {
  std::vector<Golden> all;
  for (const std::string& name : ScheduleNames()) {
    int ranks = name == "dualpipe" || name == "chimera" ? 4 : 3;
    static std::vector<std::string> files;
    files.reserve(ScheduleNames().size());
    files.push_back(name + ".csv");
    all.push_back(Named(files.back().c_str(), name, ranks, name[0] == 'd' ? 2 * ranks : 4));
  }
  StageGraph skips = ChainGraph({{0}, {1}, {2}, {0}});
  skips.edges = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3, false}, {2, 3}};
  all.push_back(Shaped("skips_and_fan_out.csv", skips, 3));
  StageGraph tied = ChainGraph({{0}, {1}, {2}});
  tied.shared = {{0, 2}};
  all.push_back(Shaped("shared_weight.csv", tied, 3));
  StageGraph hybrid = ChainGraph({{0, 1, 2, 3}, {4, 5, 6}, {7}});
  hybrid.shared = {{0, 2}};
  all.push_back(Shaped("replicas_4_3_1.csv", hybrid, 5));
  StageGraph uneven = ChainGraph({{0}, {0}, {1}, {1}, {0}});
  all.push_back(Shaped("uneven.csv", uneven, 3));
  StageGraph two = ChainGraph({{0}, {1}});
  all.push_back({"three_steps.csv",
                 Lower(Unroll(Synchronous(MakeSchedule("zb-h1", 2, 2, 2, {})), 3), two), two});
  StageGraph three = ChainGraph({{0}, {1}, {2}});
  Plan stashing = Lower(Unroll(AsynchronousOneForwardOneBackward(3, 1), 5), three);
  SetVersions(stashing);
  all.push_back({"weight_stashing.csv", stashing, three});
  return all;
}

TEST(PlanGolden, EveryByte) {
  bool update = std::getenv("PIPEWRIGHT_UPDATE_GOLDEN") != nullptr;
  for (const Golden& golden : Goldens()) {
    std::string path = std::string(TEST_DIR "/golden/plan/") + golden.file;
    std::string text = WritePlan(golden.plan);
    if (update) WriteFile(path, text);
    EXPECT_EQ(text, ReadFile(path)) << golden.file;
    EXPECT_NO_THROW(Validate(golden.plan, golden.graph)) << golden.file;
  }
}

}  // namespace
}  // namespace pipewright
