#include "plan/lower.h"

#include <gtest/gtest.h>

#include "plan/error.h"
#include "plan/plan_text.h"
#include "plan/schedule.h"
#include "plan/stage_graph.h"
#include "plan/validate.h"

namespace pipewright {

TEST(Lower, TwoRanks) {
  Placement placement = ParsePlacement("loop", 2, 2);
  Plan plan = Lower(MakeSchedule("1f1b", 2, 2, 2, placement), ChainGraph(placement));
  EXPECT_EQ(WritePlan(plan),
            "0RECV_B0<1#0,0F0,0SEND_F0>1,0F1,0SEND_F1>1,0B0,0RECV_B1<1#0,0B1,0STEP\n"
            "1RECV_F0<0#0,1RECV_F1<0#1,1F0,1B0,1SEND_B0>0,1F1,1B1,1SEND_B1>0,1STEP\n");
  Validate(plan, ChainGraph(placement));
  Validate(ReadPlan(WritePlan(plan), "p"));
}

TEST(Lower, SkipsAndFanOut) {
  StageGraph graph = ChainGraph({{0}, {1}, {2}, {0}});
  graph.edges = {{0, 1}, {0, 2}, {0, 3}, {1, 2}, {1, 3, false}, {2, 3}};
  Plan plan = Lower(MakeSchedule("1f1b", 3, 4, 2, graph.ranks_of), graph);
  EXPECT_EQ(
      WritePlan(plan),
      "3RECV_F0<1#0,3RECV_F1<1#1,3RECV_F0<2#0,0RECV_B0<1#0,0F0,0SEND_F0>1,0SEND_F0>2,0F1,"
      "0SEND_F1>1,0SEND_F1>2,3F0,3RECV_F1<2#0,0RECV_B0<2#0,0RECV_B1<2#1,3B0,3SEND_B0>2,3F1,3B1,"
      "3SEND_B1>2,0B0,0RECV_B1<1#0,0B1,0STEP,3STEP\n"
      "1RECV_F0<0#0,1RECV_F1<0#1,1RECV_B0<2#0,1F0,1SEND_F0>2,1SEND_F0>3,1F1,1SEND_F1>2,"
      "1SEND_F1>3,1B0,1RECV_B1<2#0,1SEND_B0>0,1B1,1SEND_B1>0,1STEP\n"
      "2RECV_F0<0#0,2RECV_F1<0#1,2RECV_F0<1#0,2RECV_F1<1#1,2RECV_B0<3#0,2F0,2SEND_F0>3,2F1,"
      "2SEND_F1>3,2B0,2RECV_B1<3#0,2SEND_B0>0,2SEND_B0>1,2B1,2SEND_B1>0,2SEND_B1>1,2STEP\n");
  Validate(plan, graph);
}

TEST(Lower, EverySmallPipelineIsValidAndReturnsFromItsText) {
  for (const char* name : {"gpipe", "1f1b"})
    for (int p = 1; p < 5; ++p)
      for (int s = p; s < 9; ++s)
        for (int m = 1; m < 9; ++m)
          for (const char* v : {"loop", "v"}) {
            Placement placement = ParsePlacement(v, p, s);
            StageGraph graph = ChainGraph(placement);
            Plan plan = Lower(MakeSchedule(name, p, s, m, placement), graph);
            Validate(plan, graph);
            EXPECT_EQ(WritePlan(ReadPlan(WritePlan(plan), "p")), WritePlan(plan));
            Validate(ReadPlan(WritePlan(plan), "p"));
            Validate(Lower(MakeSchedule(name, p, s, m, placement, {.forward_only = true}), graph),
                     graph);
          }
}

TEST(Lower, ReplicasAndSharedWeights) {
  StageGraph graph = ChainGraph({{0, 1, 2, 3}, {4, 5, 6}, {7}, {0}});
  graph.shared = {{0, 3}, {1, 2}};
  for (int m = 1; m < 30; ++m) {
    Plan plan = Lower(MakeSchedule("1f1b", 8, 4, m, graph.ranks_of), graph);
    if (m == 1) {
      EXPECT_EQ(WritePlan(plan),
                "#shared 0,3\n#shared 1,2\n"
                "3RECV_F0<2#0,0RECV_B0<1#0,0F0,0SEND_F0>1,3F0,3B0,3SEND_B0>2,0B0,0REDUCE_GRAD,"
                "3REDUCE_GRAD,0STEP,3STEP\n"
                "0REDUCE_GRAD,0STEP\n0REDUCE_GRAD,0STEP\n0REDUCE_GRAD,0STEP\n"
                "1RECV_F0<0#0,1RECV_B0<2#0,1F0,1SEND_F0>2,1B0,1SEND_B0>0,1REDUCE_GRAD,1STEP\n"
                "1REDUCE_GRAD,1STEP\n1REDUCE_GRAD,1STEP\n"
                "2RECV_F0<1#0,2RECV_B0<3#0,2F0,2SEND_F0>3,2B0,2SEND_B0>1,2REDUCE_GRAD,2STEP\n");
    }
    Validate(plan, graph);
  }
}

}  // namespace pipewright
