#include "plan/partition/fast/sequence_dp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "plan/partition/fast/block_cuts.h"
#include "tests/plan/partition/brute_force.h"

namespace pipewright {
namespace {

using Ints = std::vector<int>;

// Tries all cuts of the order at the positions, with all choices of devices.
struct AllCuts {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  const Ints& order;
  const Ints& positions;
  PartitionState state{{}, Ints(graph.units.size(), 0)};
  Ints left{};
  double best = kInfinity;

  double Best() {
    for (const DeviceClass& device : problem.devices) left.push_back(device.count);
    Begin(0);
    return best;
  }
  void Begin(size_t at) {
    if (at + 1 == positions.size()) {
      PartitionResult result = ResultOfStages(problem, graph, state);
      if (CheckPartition(problem, result).empty()) best = std::min(best, result.objective);
      return;
    }
    for (size_t end = at + 1; end < positions.size(); ++end)
      for (int c = 0; c < static_cast<int>(left.size()); ++c)
        for (int r = 1; r <= (problem.devices[c].host ? 1 : problem.max_replicas); ++r) {
          if (r > left[c]) continue;
          for (int p = positions[at]; p < positions[end]; ++p)
            state.stage_of[order[p]] = static_cast<int>(state.options.size());
          state.options.push_back({c, r});
          left[c] -= r;
          Begin(end);
          left[c] += r;
          state.options.pop_back();
        }
  }
};

// All features but backward nodes.
PartitionProblem Random(std::mt19937& random) {
  return RandomProblem(random, 6, static_cast<int>(random() % 256));
}

Ints Numbers(const UnitGraph& graph) {
  Ints numbers(graph.units.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST(CutOrder, FindsTheBestCuts) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    PartitionProblem problem = Random(random);
    UnitGraph graph = BuildUnits(problem, Merge::kNone);
    Ints order = Numbers(graph), positions = order;
    positions.push_back(static_cast<int>(order.size()));
    double expected = AllCuts{problem, graph, order, positions}.Best();
    int64_t steps = 1'000'000;
    Resources resources(problem);
    SequenceCuts cuts = CutOrder(problem, graph, resources, order, kInfinity, 100'000, steps);
    EXPECT_LT(steps, 1'000'000);
    ASSERT_EQ(cuts.stages.empty(), expected == kInfinity) << seed;
    if (cuts.stages.empty()) continue;
    EXPECT_NEAR(cuts.objective, expected, 1e-9 * (1 + expected)) << seed;
    PartitionResult result = ResultOfStages(problem, graph, StagesOfCuts(order, cuts));
    EXPECT_EQ(CheckPartition(problem, result), "") << seed;
    EXPECT_NEAR(result.objective, expected, 1e-9 * (1 + expected)) << seed;
    // All loads must be under the limit.
    EXPECT_TRUE(CutOrder(problem, graph, resources, order, expected * (1 - 1e-6), 100'000, steps)
                    .stages.empty())
        << seed;
    EXPECT_FALSE(CutOrder(problem, graph, resources, order, expected * (1 + 1e-6) + 1e-9, 100'000,
                          steps)
                     .stages.empty())
        << seed;
  }
}

TEST(CutBlocks, CutsOnlyAtTheGivenPositions) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    PartitionProblem problem = Random(random);
    UnitGraph graph = BuildUnits(problem, Merge::kNone);
    Ints order = Numbers(graph), positions = {0};
    int n = static_cast<int>(order.size());
    for (int p = 1; p < n; ++p)
      if (random() % 2) positions.push_back(p);
    positions.push_back(n);
    double expected = AllCuts{problem, graph, order, positions}.Best();
    int64_t steps = 1'000'000;
    SequenceCuts cuts = CutBlocks(problem, ChainOf(graph, order, positions), Resources(problem),
                                  kInfinity, steps);
    ASSERT_EQ(cuts.stages.empty(), expected == kInfinity) << seed;
    if (cuts.stages.empty()) continue;
    EXPECT_NEAR(cuts.objective, expected, 1e-9 * (1 + expected)) << seed;
    int end = 0;
    for (const Cut& cut : cuts.stages) {
      EXPECT_EQ(cut.begin, end);
      end = cut.end;
    }
    EXPECT_EQ(end, static_cast<int>(positions.size()) - 1);
  }
}

// One net reaches from the first block to the last and one stays in the middle block.
TEST(ChainOf, ListsTheNetsThatTouchEachBlock) {
  UnitGraph graph;
  graph.units.resize(4);
  for (int u = 0; u < 4; ++u) graph.units[u].device_time = 1 << u;
  graph.nets = {{{0, 1, 3}, 5, 2, 7, 11}, {{1, 2}, 3, 1, 0, 13}};
  Chain chain = ChainOf(graph, {0, 2, 1, 3}, {0, 1, 3, 4});
  ASSERT_EQ(chain.blocks.size(), 3u);
  EXPECT_EQ(chain.blocks[0].device_time, 1);
  EXPECT_EQ(chain.blocks[1].device_time, 6);
  EXPECT_EQ(chain.blocks[1].stash_bytes, 13);
  EXPECT_EQ(chain.blocks[2].stash_bytes, 0);
  EXPECT_EQ(chain.begin, (std::vector<size_t>{0, 1, 2, 3}));
  Ints before, first;
  for (const Chain::Touch& touch : chain.touches) {
    EXPECT_EQ(touch.time, 5);
    EXPECT_EQ(touch.stash_bytes, 11);
    before.push_back(touch.before), first.push_back(touch.first);
  }
  EXPECT_EQ(before, (Ints{-1, 0, 1}));
  EXPECT_EQ(first, (Ints{-1, -1, 0}));
}

TEST(StagesOfCuts, NumbersTheUnitsByPosition) {
  SequenceCuts cuts;
  cuts.stages = {{0, 1, {0, 2}}, {1, 3, {1, 1}}};
  PartitionState state = StagesOfCuts({2, 0, 1}, cuts);
  EXPECT_EQ(state.stage_of, (Ints{1, 1, 0}));
  ASSERT_EQ(state.options.size(), 2u);
  EXPECT_EQ(state.options[0].replicas, 2);
  EXPECT_EQ(state.options[1].device_class, 1);
}

}  // namespace
}  // namespace pipewright
