// Places modules that share buffers, which count once on each device.
#include <gtest/gtest.h>

#include <random>

#include "tests/plan/placement/models.h"
#include "tests/plan/placement/place_under.h"

namespace pipewright {
namespace {

// Layers of 100 bytes that share one buffer of 60: each device has it once, wherever they are.
TEST(Place, ABufferOfSeveralModulesIsThereOnceADevice) {
  std::vector<Json> layers;
  for (int i = 0; i < 4; ++i) {
    layers.push_back(ModuleJson("Layer", {{"w", TensorJson({100}, "U8")}}));
    layers.back()["buffers"] = {{"mask", i ? SameAs("0.mask") : TensorJson({60}, "U8")}};
  }
  const ModuleTree tree = Tree(Sequential(layers));
  EXPECT_EQ(tree.modules[0].bytes, 460);
  EXPECT_EQ(TiedGroups(tree).size(), 1u);
  const auto split = Parsed(R"({"0": 0, "1": 0, "2": 1, "3": 1})");
  PlaceOptions options;
  for (const char* policy : {"auto", "sequential", "balanced", "optimal"}) {
    options.policy = PlacePolicyFromText(policy);
    const bool greedy = policy[0] == 'a' || policy[0] == 's';  // keeps room for the largest layer
    const std::string first = greedy ? "0=360" : "0=260";
    Placement placement = PlaceUnder(tree, first + ",1=260", options);
    EXPECT_EQ(Map(placement), split) << policy;
    EXPECT_EQ(Use(placement, "0").used, 260) << policy;
    EXPECT_EQ(Use(placement, "1").used, 260) << policy;
    EXPECT_TRUE(CheckDeviceMap(tree, placement.map).split_ties.empty());
    placement = PlaceUnder(tree, first + ",1=259", options);
    EXPECT_LE(Use(placement, "1").used, 259) << policy;
    EXPECT_EQ(Map(tree, "0=460", options), Parsed(R"({"": 0})")) << policy;
    EXPECT_NE(Map(tree, "0=459", options), Parsed(R"({"": 0})")) << policy;
  }
  // Two layers of 100 pass through two slots; the buffer stays.
  Placement placement = PlaceUnder(tree, "0=459,cpu=1000", options);
  EXPECT_EQ(placement.moved, 300);
  EXPECT_EQ(Use(placement, "0").used + Use(placement, "0").reserved, 360);
}

// With any ties and shared buffers, every tensor has a place, tied parameters have one, and no
// device exceeds its budget.
TEST(Place, BudgetsHold) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<Json> layers;
    for (size_t i = 0, count = 2 + random() % 6; i < count; ++i) {
      // Makes a new tensor, or refers to that of an earlier layer.
      auto tensor = [&](const std::string& name, bool again) {
        if (i && again) return SameAs(std::to_string(random() % i) + "." + name);
        return TensorJson({static_cast<int64_t>(1 + random() % 50)}, "U8");
      };
      layers.push_back(ModuleJson("Layer", {{"w", tensor("w", random() % 4 == 0)}}));
      layers.back()["buffers"] = {{"mask", tensor("mask", random() % 2)}};
    }
    const ModuleTree tree = Tree(Sequential(layers));
    std::string budgets;
    for (int d = 0; d < 2; ++d)
      budgets += std::to_string(d) + "=" + std::to_string(random() % 200) + ",";
    budgets += "cpu=" + std::to_string(random() % 200);
    for (const char* policy : {"auto", "sequential", "balanced", "balanced_low_0", "optimal"}) {
      PlaceOptions options;
      options.policy = PlacePolicyFromText(policy);
      options.offload_buffers = true;
      const Placement placement = PlaceUnder(tree, budgets, options);
      const MapProblems problems = CheckDeviceMap(tree, placement.map);
      EXPECT_TRUE(placement.uncovered.empty() && problems.Usable() && problems.split_ties.empty())
          << policy << " " << budgets;
      for (const BudgetUse& use : placement.budgets)
        EXPECT_TRUE(use.limit < 0 || use.used <= use.limit) << policy << " " << budgets;
    }
  }
}

// The bound on resident bytes is no worse than the true optimum: here layers 2 and 3 on device 1,
// with the buffer.
TEST(Place, TheBoundOfOptimalHoldsWithASharedBuffer) {
  std::vector<Json> layers;
  for (int i = 0; i < 4; ++i) {
    layers.push_back(ModuleJson("Layer", {{"w", TensorJson({100}, "U8")}}));
    layers.back()["buffers"] = {{"mask", i ? SameAs("0.mask") : TensorJson({60}, "U8")}};
  }
  PlaceOptions options;
  options.policy = PlacePolicy::kOptimal;
  options.offload_buffers = true;
  const Placement placement =
      PlaceUnder(Tree(Sequential(layers)), "0=210,1=300,cpu=1000", options);
  EXPECT_LE(placement.moved_bound, 260);
  EXPECT_LE(placement.moved_bound, placement.moved);
}

}  // namespace
}  // namespace pipewright
