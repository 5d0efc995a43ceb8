#include "plan/placement/residence.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/placement/tensor_ids.h"
#include "tests/error_text.h"

namespace pipewright {
namespace {

// Four modules, each a layer of the source model with a weight of 4 x 4 and a constant; the last
// one's weight is tied to the first one's.
Manifest FourModules() {
  Manifest manifest;
  for (int m = 0; m < 4; ++m) {
    ModuleInfo module;
    module.name = "module" + std::to_string(m);
    module.covers = {"layers." + std::to_string(m), "layers." + std::to_string(m) + ".fc"};
    WeightInfo weight{
        "layers." + std::to_string(m) + ".fc.weight", WeightKind::kParameter, "float32", {4, 4},
        true, true};
    WeightInfo constant{
        "c" + std::to_string(m), WeightKind::kConstant, "float32", {2}, false, true};
    module.held = {weight, constant};
    manifest.modules.push_back(module);
  }
  manifest.tied = {{"head.weight", "layers.0.fc.weight", "layers.3.fc.weight"}};
  return manifest;
}

std::string DiskOf(const Residence& residence) {
  std::string text;
  for (const std::vector<bool>& module : residence.on_disk) {
    for (bool disk : module) text += disk ? 'd' : '.';
    text += ' ';
  }
  return text;
}

TEST(Residence, NamesOfThePackageAndOfTheModel) {
  Manifest manifest = FourModules();
  Residence of = ReadResidence(manifest, {{"", "disk"}}, "map", 1);
  EXPECT_EQ(DiskOf(of), "dd dd dd dd ");
  EXPECT_EQ(of.conf.module_to_stage, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(of.conf.offloaded_stages, (std::vector<int>{0, 1, 2, 3}));

  of = ReadResidence(manifest,
                     {{"module0", "cpu"}, {"module1", "disk"}, {"module2", "0"}, {"module3", "0"}},
                     "map", 1);
  EXPECT_EQ(DiskOf(of), ".. dd .. .. ");
  EXPECT_EQ(of.conf.module_to_stage, (std::vector<int>{0, 1, 2, 2}));
  EXPECT_EQ(of.conf.offloaded_stages, std::vector<int>{1});

  // A tied name represents the others; constants go with their module.
  of = ReadResidence(
      manifest, {{"head.weight", "cpu"}, {"layers.1.fc", "disk"}, {"layers.2", "cpu"}}, "map", 1);
  EXPECT_EQ(DiskOf(of), ".. dd .. .. ");
  EXPECT_TRUE(of.warnings.empty());
}

TEST(TensorIds, OneForWhatARankNeedsOnce) {
  Manifest manifest = FourModules();
  manifest.shared = {{{{0, "layers.0.fc.weight"}, {3, "layers.3.fc.weight"}}}};
  for (int m : {1, 2}) {
    manifest.modules[m].held[1] = {"mask", WeightKind::kBuffer, "bool", {2}, false, true};
    manifest.modules[m].held.push_back({"mask", WeightKind::kConstant, "bool", {2}, false, true});
  }
  using Ids = std::vector<std::vector<int>>;
  EXPECT_EQ(TensorIds(manifest, false), (Ids{{0, 1}, {2, 3, 4}, {5, 3, 4}, {0, 6}}));
  // Each module steps its copies of trained weights, and changes its buffers.
  EXPECT_EQ(TensorIds(manifest, true), (Ids{{0, 1}, {2, 3, 4}, {5, 6, 7}, {8, 9}}));
  manifest.modules[0].held[0].requires_grad = manifest.modules[3].held[0].requires_grad = false;
  EXPECT_EQ(TensorIds(manifest, true), (Ids{{0, 1}, {2, 3, 4}, {5, 6, 7}, {0, 8}}));
}

TEST(Residence, NumberedDevicesAreRanks) {
  Manifest manifest = FourModules();
  DeviceMap map = {{"module0", "cpu"}, {"module1", "3"}, {"module2", "disk"}, {"module3", "7"}};
  Residence of = ReadResidence(manifest, map, "map", 2);
  EXPECT_EQ(of.conf.stage_to_ranks, (std::vector<std::vector<int>>{{0}, {0}, {1}}));
  EXPECT_EQ(of.conf.module_to_stage, (std::vector<int>{0, 0, 1, 2}));
  EXPECT_EQ(ReadResidence(manifest, map, "map", 1).conf.stage_to_ranks,
            (std::vector<std::vector<int>>{{0}, {0}, {0}}));
}

TEST(Residence, Refusals) {
  Manifest manifest = FourModules();
  auto refused = [&](const DeviceMap& map, int ranks, const char* part) {
    try {
      ReadResidence(manifest, map, "map.json", ranks);
      ADD_FAILURE() << part;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused({{"module0", "cpu"}}, 1,
          "map.json: no device for layers.1.fc.weight, layers.2.fc.weight");
  refused({{"layrs.1", "cpu"}}, 1, "(did you mean \"layers.1\"?)");
  refused({{"", "cpu"}, {"module0", "disk"}}, 1, "keys within keys: \"\" and \"module0\"");
  refused({{"layers", "0"}, {"layers.1.fc.weight", "1"}}, 1, "keys within keys");
  refused({{"", "cpu"}}, 3, "1 numbered device, one per rank; 3 ranks were started");
  Residence of = ReadResidence(manifest, {{"layers", "cpu"}, {"nothing", "disk"}}, "map.json", 1);
  EXPECT_EQ(of.warnings, std::vector<std::string>{
                             "map.json: the map names \"nothing\", which the model does not have"});
}

// All problems at once, with either kind of names.
TEST(Residence, Problems) {
  const Manifest manifest = FourModules();
  EXPECT_TRUE(CheckPackageMap(manifest, {{"layers.0", "0"},
                                         {"module1", "0"},
                                         {"layers.2.fc", "1"},
                                         {"layers.3.fc.weight", "disk"}})
                  .Usable());
  const MapProblems problems = CheckPackageMap(
      manifest, {{"layers.0", "0"}, {"layers.0.fc", "1"}, {"layrs.2", "0"}, {"module3", "1"}});
  EXPECT_FALSE(problems.Usable());
  EXPECT_EQ(problems.uncovered,
            (std::vector<std::string>{"layers.1.fc.weight", "layers.2.fc.weight"}));
  EXPECT_EQ(problems.overlapping,
            (std::vector<std::string>{"\"layers.0\" and \"layers.0.fc\""}));
  ASSERT_EQ(problems.unknown.size(), 1u);
  EXPECT_NE(problems.unknown[0].find("layers.2"), std::string::npos) << problems.unknown[0];
}

// The advice of an error is accepted by the command that it names.
TEST(Residence, Cures) {
  Manifest manifest = FourModules();
  auto message = [&](const DeviceMap& map, int ranks) -> std::string {
    return ErrorOf([&] { ReadResidence(manifest, map, "map.json", ranks); });
  };
  // "" beside other keys is refused.
  EXPECT_TRUE(message({{"module0", "cpu"}}, 1).ends_with("\n  add them"));
  EXPECT_TRUE(message({}, 1).ends_with("\n  add them, or \"\" for all"));
  // A package is cut before a submodule, not before a weight.
  manifest.modules[1].held.push_back(manifest.modules[1].held[0]);
  manifest.modules[1].held.back().name = "layers.1.up.weight";
  EXPECT_TRUE(message({{"module0", "0"}, {"layers.1.fc", "0"}, {"layers.1.up", "1"},
                       {"module2", "1"}, {"module3", "1"}}, 2)
                  .ends_with("--split modules:layers.1.up"))
      << message({{"module0", "0"}, {"layers.1.fc", "0"}, {"layers.1.up", "1"},
                  {"module2", "1"}, {"module3", "1"}}, 2);
  manifest.modules[1].held.back().name = "scale";
  EXPECT_TRUE(message({{"module0", "0"}, {"layers.1.fc", "0"}, {"scale", "1"}, {"module2", "1"},
                       {"module3", "1"}}, 2)
                  .ends_with("\n  put them on one device"));
}

}  // namespace
}  // namespace pipewright
