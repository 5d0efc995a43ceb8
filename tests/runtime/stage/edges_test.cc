#include "runtime/stage/edges.h"

#include <gtest/gtest.h>

namespace pipewright {

// One value of module 0, used by modules 1, 2 and 3.
static Manifest FanOut() {
  Manifest m;
  m.values = {{"v", ValueKind::kTensor, "float32", {"4"}, true, 0, {1, 2, 3}, {}}};
  m.modules.resize(4);
  m.modules[0].outputs = {0};
  for (int i = 1; i < 4; ++i) m.modules[i].inputs = {0};
  return m;
}

static std::vector<std::vector<int>> Backward(const std::vector<int>& stages, int from, int to,
                                              const std::vector<int>& losses = {}) {
  Manifest manifest = FanOut();
  Conf conf{stages, false, {{0}, {1}, {2}}, {}};
  conf.stage_to_ranks.resize(1 + *std::max_element(stages.begin(), stages.end()));
  StageGraph graph = MakeStageGraph(manifest, conf);
  std::vector<EdgeContents> contents = MakeEdgeContents(manifest, conf, graph, losses);
  std::vector<std::vector<int>> out;
  for (size_t e = 0; e < graph.edges.size(); ++e)
    if (graph.edges[e].from == from && graph.edges[e].to == to) {
      EXPECT_EQ(contents[e].forward, std::vector<int>{0});
      for (const Contribution& c : contents[e].backward) out.push_back(c.consumers);
    }
  return out;
}

// The sum is ((g3 + g2) + g1) for any stages: only its first part may be summed early.
TEST(Edges, GradientsKeepTheOrderOfTheirConsumers) {
  using Lists = std::vector<std::vector<int>>;
  EXPECT_EQ(Backward({0, 1, 1, 1}, 0, 1), (Lists{{1, 2, 3}}));
  EXPECT_EQ(Backward({0, 1, 1, 2}, 0, 1), (Lists{{1}, {2}}));
  EXPECT_EQ(Backward({0, 1, 1, 2}, 0, 2), (Lists{{3}}));
  EXPECT_EQ(Backward({0, 1, 2, 2}, 0, 1), (Lists{{1}}));
  EXPECT_EQ(Backward({0, 1, 2, 2}, 0, 2), (Lists{{2, 3}}));
  EXPECT_EQ(Backward({0, 0, 1, 1}, 0, 1), (Lists{{2, 3}}));
  EXPECT_EQ(Backward({0, 1, 1, 1}, 0, 1, {0}), (Lists{{1}, {2}, {3}}));  // a loss comes first
}

}  // namespace pipewright
