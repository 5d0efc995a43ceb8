#include "plan/run/insert_loads.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "formats/conf.h"
#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/plan_text.h"
#include "plan/simulate/measure.h"
#include "plan/stage_graph.h"
#include "tests/plan/random_plan.h"

namespace pipewright {
namespace {

// The next stage is loaded while the previous one computes; one sweep serves all microbatches.
TEST(Offload, TwoSlotsBreadthFirst) {
  StagePlacement one(4, {0});
  ScheduleOptions forward;
  forward.forward_only = true;
  Plan plan = Lower(MakeSchedule("bfs", 1, 4, 2, one, forward), ChainGraph(one));
  InsertLoads(plan, {{0, 1, 2, 3}, {}, 0});
  EXPECT_EQ(WritePlan(plan),
            "0LOAD,1LOAD,0F0,0F1,0EVICT,2LOAD,1F0,1F1,1EVICT,3LOAD,2F0,2F1,2EVICT,3F0,3F1,"
            "3EVICT\n");
  InsertLoads(plan, {{1, 3}, {}, 1});
  EXPECT_EQ(WritePlan(plan), "1LOAD,0F0,0F1,1F0,1F1,1EVICT,3LOAD,2F0,2F1,3F0,3F1,3EVICT\n");
}

// Stages that are in memory when the sweep turns are not loaded again.
TEST(Offload, ForwardAndBackward) {
  StagePlacement one(3, {0});
  Plan plan = Lower(MakeSchedule("bfs", 1, 3, 1, one), ChainGraph(one));
  InsertLoads(plan, {{0, 1, 2}, {}, 0});
  EXPECT_EQ(WritePlan(plan),
            "0LOAD,1LOAD,0F0,0EVICT,2LOAD,1F0,2F0,2B0,2EVICT,0LOAD,1B0,0B0,0STEP,0EVICT,2LOAD,"
            "1STEP,1EVICT,2STEP,2EVICT\n");
  EXPECT_NO_THROW(Validate(plan));
  EXPECT_EQ(LoadedPeaks(plan, {{0, 1, 2}, {}, 0}), std::vector<double>{2});
}

TEST(Offload, RandomPlansStayValidWithinTheMemory) {
  std::mt19937 random(17);
  int done = 0, loads = 0;
  for (int n = 0; n < 600; ++n) {
    std::optional<RandomCase> c =
        MakeRandomCase(random, ScheduleNames()[static_cast<size_t>(n) % ScheduleNames().size()]);
    if (!c) continue;
    Plan plan = Lower(c->schedule, c->graph);
    std::string before = WritePlan(plan);
    Offload offload;
    double largest = 0;
    for (int s = 0; s < c->stages; ++s) {
      offload.weights.push_back(Pick(random, 1, 5));
      if (Pick(random, 0, 2)) offload.stages.push_back(s);
      largest = std::max(largest, offload.weights.back());
    }
    offload.memory = Pick(random, 0, 2) ? 2 * largest + Pick(random, 0, 6) : 0;
    if (Pick(random, 0, 1)) {  // trained weights stay; stages before them are forward only
      offload.step = offload.weight_grad = false;
      for (int s = Pick(random, 0, c->stages); s-- > 0;)
        offload.forward_only.insert(offload.forward_only.begin(), s);
    }
    InsertLoads(plan, offload);
    ASSERT_NO_THROW(Validate(plan, c->graph)) << WritePlan(plan);
    ASSERT_NO_THROW(CheckLoads(plan, offload)) << WritePlan(plan);
    std::string text = WritePlan(plan);
    ASSERT_EQ(WritePlan(ReadPlan(text, "plan")), text);
    for (auto& actions : plan.ranks) {
      loads += static_cast<int>(std::count_if(actions.begin(), actions.end(), [](const Action& a) {
        return a.kind == ActionKind::kLoad;
      }));
      std::erase_if(actions, [](const Action& a) {
        return a.kind == ActionKind::kLoad || a.kind == ActionKind::kEvict;
      });
    }
    ASSERT_EQ(WritePlan(plan), before);  // nothing else moved
    ++done;
  }
  EXPECT_GT(done, 300);
  EXPECT_GT(loads, 1000);
}

TEST(Offload, Refusals) {
  StagePlacement one(2, {0});
  Plan plan = Lower(MakeSchedule("bfs", 1, 2, 1, one), ChainGraph(one));
  auto refused = [](auto act, const char* part) {
    try {
      act();
      ADD_FAILURE() << part;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused([&] { InsertLoads(plan, {{1}, {1, 4}, 3}); }, "its weights take 4,");
  refused([&] { InsertLoads(plan, {{2}, {}, 0}); }, "there is no stage 2");
  // Weights that both stages use are in memory beside each of them.
  Offload held{{0, 1}, {1, 1}, 3};
  InsertLoads(plan, held);
  EXPECT_EQ(LoadedPeaks(plan, held), std::vector<double>{2});
  held.held = {2};
  EXPECT_THROW(CheckLoads(plan, held), Error);
  InsertLoads(plan, held);
  EXPECT_EQ(LoadedPeaks(plan, held), std::vector<double>{1});
  held.held = {3};
  refused([&] { InsertLoads(plan, held); }, "beside 3 of tied weights");
  refused([&] { CheckLoads(plan, {{1}, {}, 0}); }, "offloaded and not loaded");
  Plan early = ReadPlan("0LOAD,0F0,0F1,0B0,0EVICT,0B1,0STEP\n", "p");
  refused([&] { Validate(early); }, "rule \"load\": the weights of stage 0 are not loaded here");
  Plan step = ReadPlan("0LOAD,0F0,0B0,0EVICT,0STEP\n", "p");
  refused([&] { CheckLoads(step, {{0}, {}, 0}); }, "offloaded and not loaded");
  EXPECT_NO_THROW(CheckLoads(step, {{0}, {}, 0, /*step=*/false}));  // offloaded weights are frozen
  InsertLoads(step, {{0}, {}, 0, /*step=*/false});
  EXPECT_EQ(WritePlan(step), "0LOAD,0F0,0B0,0EVICT,0STEP\n");
  // Nothing in stage 0 is trained: its backward computes nothing.
  Plan frozen = ReadPlan("0LOAD,0F0,0EVICT,0B0,0STEP\n", "p");
  EXPECT_NO_THROW(Validate(frozen));
  EXPECT_NO_THROW(CheckLoads(frozen, {{0}, {}, 0, false, {0}}));
  refused([&] { CheckLoads(frozen, {{0}, {}, 0, false}); }, "offloaded and not loaded");
  InsertLoads(frozen, {{0}, {}, 0, false, {0}});
  EXPECT_EQ(WritePlan(frozen), "0LOAD,0F0,0EVICT,0B0,0STEP\n");
  // A backward whose weights are kept for the next forward.
  frozen = ReadPlan("0LOAD,0F0,0B0,0F1,0EVICT,0B1,0STEP\n", "p");
  EXPECT_NO_THROW(Validate(frozen));
  EXPECT_NO_THROW(CheckLoads(frozen, {{0}, {}, 0, false, {0}}));
  refused([&] { CheckLoads(frozen, {{0}, {}, 0, false}); }, "offloaded and not loaded");
  // I computes the gradients that W adds up.
  Plan split = ReadPlan("0LOAD,0F0,0I0,0EVICT,0W0,0STEP\n", "p");
  EXPECT_NO_THROW(Validate(split));
  EXPECT_NO_THROW(CheckLoads(split, {{0}, {}, 0, false, {}, /*weight_grad=*/false}));
  refused([&] { CheckLoads(split, {{0}, {}, 0, false}); }, "offloaded and not loaded");
  Plan both = ReadPlan("0LOAD,1LOAD,0F0,1F0,1B0,0B0,0STEP,1STEP\n", "p");
  refused([&] { CheckLoads(both, {{0, 1}, {}, 1}); }, "loaded at once");
}

// 4 stages of 10 bytes, 2 bytes a unit of time, F = 3, 2 microbatches: loads take 5, computes 6.
TEST(Offload, SimulatedLoadsRunBesideComputes) {
  StagePlacement one(4, {0});
  ScheduleOptions forward;
  forward.forward_only = true;
  Plan plan = Lower(MakeSchedule("bfs", 1, 4, 2, one, forward), ChainGraph(one));
  InsertLoads(plan, {{0, 1, 2, 3}, {}, 0});
  Costs costs = ParseCosts(R"({"stages": [{"F": 3, "I": 1, "W": 1, "weights": 10, "activation": 0}],
                               "disk": {"bandwidth": 2}})",
                           "costs");
  ActionTrace trace = Simulate(plan, costs);
  Figures figures = Measure(plan, costs, trace);
  EXPECT_EQ(figures.makespan, 5 + 4 * 6);
  EXPECT_EQ(figures.ranks[0].busy, 24);
  EXPECT_EQ(figures.ranks[0].peak_bytes, 20);
  ASSERT_EQ(trace.loads[0].size(), 4u);
  EXPECT_EQ(trace.loads[0][2].start, 11);  // when stage 0 is evicted
  costs.disk.bandwidth = 1;                // the disk is the limit: 4 loads of 10, then a compute
  EXPECT_EQ(Measure(plan, costs, Simulate(plan, costs)).makespan, 10 + 10 + 10 + 10 + 6 + 0);
}

TEST(Offload, Conf) {
  Conf conf =
      ParseConf(R"({"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0], "1": [0]},
                            "offload": {"stages": [1], "memory": "2KiB"}})",
                "conf");
  EXPECT_EQ(conf.offloaded_stages, std::vector<int>{1});
  EXPECT_EQ(conf.offload_memory, 2048);
  EXPECT_EQ(ParseConf(WriteConf(conf), "conf"), conf);
  for (const char* bad : {R"({"stages": [2]})", R"({"stages": [1, 0]})", R"({"memory": 3})",
                          R"({"stages": [0], "room": 3})", R"({"stages": [0], "memory": true})"})
    EXPECT_THROW(ParseConf(R"({"module_to_stage_map": [0, 1],
                               "stage_to_rank_map": {"0": [0], "1": [0]}, "offload": )" +
                               std::string(bad) + "}",
                           "conf"),
                 Error)
        << bad;
}

}  // namespace
}  // namespace pipewright
