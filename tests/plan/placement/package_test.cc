#include "plan/placement/package.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/placement/place.h"

namespace pipewright {
namespace {

// Four modules that hold w0 to w3, 400 bytes each; the last shares w0.
Manifest FourModules() {
  Manifest manifest;
  for (int m = 0; m < 4; ++m) {
    ModuleInfo module;
    module.name = "module" + std::to_string(m);
    module.covers = {"block." + std::to_string(m)};
    WeightInfo weight;
    weight.name = "block." + std::to_string(m) + ".w";
    weight.dtype = "float32";
    weight.shape = {10, 10};
    module.held.push_back(weight);
    if (m == 3) {
      weight.name = "head.w";
      module.held.push_back(weight);
    }
    manifest.modules.push_back(module);
  }
  manifest.shared.push_back({{{0, "block.0.w"}, {3, "head.w"}}});
  return manifest;
}

TEST(PackagePlacement, ModulesAreLayersAndSharedWeightsAreTied) {
  ModuleTree tree = TreeOfPackage(FourModules());
  EXPECT_EQ(tree.modules[0].bytes, 1600);
  EXPECT_EQ(TiedGroups(tree),
            (std::vector<std::vector<std::string>>{{"module0.block.0.w", "module3.head.w"}}));
  PlaceOptions options;
  options.budgets = ParseBudgets({"0=800,1=10kB"});
  options.policy = PlacePolicy::kBalanced;
  DeviceMap map = Place(tree, options).map;
  EXPECT_EQ(DeviceOf(map, "module0"), DeviceOf(map, "module3"));
}

TEST(PackagePlacement, BuffersOfSeveralModulesCountOnceADevice) {
  Manifest manifest = FourModules();
  for (int m : {0, 1, 3}) {
    manifest.modules[m].held.push_back({"mask", WeightKind::kBuffer, "bool", {50}, false, true});
    manifest.modules[m].held.push_back({"c0", WeightKind::kConstant, "float32", {25}, false, true});
  }
  const ModuleTree tree = TreeOfPackage(manifest);
  EXPECT_EQ(tree.modules[0].bytes, 1600 + 150);
  PlaceOptions options;
  options.budgets = ParseBudgets({"0=10kB,1=10kB"});
  options.policy = PlacePolicy::kBalanced;
  const Placement placement = Place(tree, options);
  EXPECT_NE(DeviceOf(placement.map, "module0"), DeviceOf(placement.map, "module1"));
  EXPECT_EQ(placement.budgets[0].used + placement.budgets[1].used, 1600 + 2 * 150);
}

TEST(PackagePlacement, AMapBecomesAConf) {
  Manifest manifest = FourModules();
  std::vector<std::string> warnings;
  auto conf = [&](const DeviceMap& map) {
    return ConfOfDeviceMap(manifest, map, "map.json", warnings);
  };
  using Stages = std::vector<int>;
  using Ranks = std::vector<std::vector<int>>;
  Conf own = conf({{"module0", "1"}, {"module1", "1"}, {"module2", "0"}, {"module3", "0"}});
  EXPECT_EQ(own.module_to_stage, (Stages{0, 0, 1, 1}));
  EXPECT_EQ(own.stage_to_ranks, (Ranks{{1}, {0}})) << "a number is a rank";
  Conf first = conf({{"module0", "cpu"}, {"module1", "0"}, {"module2", "0"}, {"module3", "0"}});
  EXPECT_EQ(first.stage_to_ranks, (Ranks{{0}, {1}})) << "every schedule has this order";
  // By names of the source model; a device that occurs again gets another stage on the same rank.
  Conf again = conf(
      {{"block.0", "0"}, {"block.1", "cpu"}, {"block.2", "cpu"}, {"block.3", "0"}, {"head", "0"}});
  EXPECT_EQ(again.module_to_stage, (Stages{0, 1, 1, 2}));
  EXPECT_EQ(again.stage_to_ranks, (Ranks{{0}, {1}, {0}}));
  EXPECT_EQ(conf({{"", "0"}}).module_to_stage, (Stages{0, 0, 0, 0}));
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(conf({{"block", "1"}, {"head", "1"}, {"typo", "0"}}).stage_to_ranks, (Ranks{{0}}));
  EXPECT_EQ(warnings.size(), 1u);
  EXPECT_THROW(conf({{"block.0", "0"}, {"block.2", "1"}}), Error) << "some have no device";
  EXPECT_THROW(conf({{"block", "0"}, {"block.2", "disk"}, {"head", "0"}}), Error) << "overlap";
  CheckConf(again, 4, 2, {{0, 1}, {1, 2}, {2, 3}}, "conf");
  EXPECT_THROW(conf({{"block", "0"}, {"head", "1"}}), Error);
  // Modules on disk are computed where the module before them is.
  Conf disk = conf({{"module0", "disk"}, {"module1", "0"}, {"module2", "1"}, {"module3", "disk"}});
  EXPECT_EQ(disk.module_to_stage, (Stages{0, 1, 2, 3}));
  EXPECT_EQ(disk.stage_to_ranks, (Ranks{{0}, {0}, {1}, {1}}));
  EXPECT_EQ(disk.offloaded_stages, (Stages{0, 3}));
  EXPECT_EQ(conf({{"", "disk"}}).offloaded_stages, (Stages{0, 1, 2, 3}));
  EXPECT_EQ(conf({{"", "disk"}}).stage_to_ranks, (Ranks{{0}, {0}, {0}, {0}}));
  EXPECT_THROW(conf({{"other", "0"}}), Error);
  // A module that holds a constant only, which the model does not name.
  manifest.modules[1].held[0] = {"c0", WeightKind::kConstant, "float32", {25}, false, true};
  EXPECT_EQ(
      conf({{"block.0", "0"}, {"block.1", "1"}, {"block.2", "1"}, {"block.3", "1"}, {"head", "1"}})
          .module_to_stage,
      (Stages{0, 1, 1, 1}));
}

}  // namespace
}  // namespace pipewright
