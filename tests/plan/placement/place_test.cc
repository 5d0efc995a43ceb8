#include "plan/placement/place.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/text.h"
#include "plan/placement/tree/read_tree.h"
#include "tests/plan/placement/models.h"
#include "tests/plan/placement/place_under.h"

namespace pipewright {
namespace {

bool Warns(const Placement& placement, const std::string& about) {
  for (const std::string& warning : placement.warnings)
    if (warning.find(about) != std::string::npos) return true;
  return false;
}

// Matches accelerate's answer wherever it covers the model; elsewhere any answer that does.
TEST(Place, AgreesWithAcceleratesCases) {
  std::ifstream in(TEST_DIR "/data/placement/device_map_cases.jsonl");
  std::string line;
  int cases = 0;
  while (std::getline(in, line)) {
    Json test = ParseJson(line, "case");
    std::vector<std::string> parts;
    for (const auto& [device, bytes] : test["max_memory"].items())
      parts.push_back(device + "=" + bytes.dump());
    PlaceOptions options;
    ModuleTree tree = Model(test["model"]);
    for (const auto& [key, value] : test["args"].items()) {
      if (key == "dtype")
        ApplyDtypes(tree, value, {});
      else if (key == "offload_buffers")
        options.offload_buffers = value;
      else if (key == "fallback_allocation")
        options.fallback = value;
      else if (key == "no_split_module_classes")
        options.no_split = value.get<std::vector<std::string>>();
      else
        ADD_FAILURE() << key;
    }
    Placement placement = PlaceUnder(tree, Join(parts, ","), options);
    ++cases;
    if (test["max_memory"].contains("disk")) {  // accelerate ignores the budget of a disk
      EXPECT_EQ(placement.uncovered.size(), tree.tensors.size()) << line;
      EXPECT_TRUE(Warns(placement, "does not fit"));
    } else if (test["covers_model"] == true) {
      EXPECT_EQ(Map(placement), Parsed(test["accelerate_result"].dump())) << line;
    }
    if (!test["max_memory"].contains("disk")) {
      MapProblems problems = CheckDeviceMap(tree, placement.map);
      EXPECT_TRUE(problems.Usable() && problems.unknown.empty() && problems.split_ties.empty());
      for (const BudgetUse& use : placement.budgets)
        if (use.limit >= 0 && options.offload_buffers) {
          EXPECT_LE(use.used, use.limit) << line;
        }
    }
  }
  EXPECT_EQ(cases, 25);
}

ModuleTree ThreeMfts(std::vector<std::pair<std::string, std::string>> ties) {
  Json model = Container("Three", {{"layer1", Mft()}, {"layer2", Mft()}, {"layer3", Mft()}});
  for (auto [name, target] : ties) {
    std::vector<std::string> path = Split(name, '.');
    model["children"][path[0]]["children"][path[1]]["parameters"][path[2]] = SameAs(target);
  }
  return Tree(model);
}

TEST(Place, TiedModulesStayTogether) {
  EXPECT_EQ(Map(Model("MFT_tied"), "0=200,1=200"), Parsed(R"({"": 0})"));
  EXPECT_EQ(Map(ThreeMfts({{"layer3.linear2.weight", "layer1.linear2.weight"}}), "0=400,1=500"),
            Parsed(R"({"layer1": 0, "layer3.linear2": 0, "layer2": 1, "layer3.linear1": 1,
                       "layer3.batchnorm": 1})"));
  EXPECT_EQ(Map(ThreeMfts({{"layer2.linear2.weight", "layer1.linear2.weight"},
                           {"layer3.linear2.weight", "layer1.linear2.weight"}}),
                "0=400,1=500"),
            Parsed(R"({"layer1": 0, "layer2.linear2": 0, "layer3.linear2": 0, "layer2.linear1": 1,
                       "layer2.batchnorm": 1, "layer3.linear1": 1, "layer3.batchnorm": 1})"));
  EXPECT_EQ(Map(ThreeMfts({{"layer2.linear2.weight", "layer1.linear2.weight"},
                           {"layer3.linear2.weight", "layer1.linear2.weight"},
                           {"layer2.linear1.weight", "layer1.linear1.weight"}}),
                "0=400,1=500"),
            Parsed(R"({"layer1": 0, "layer2.linear1": 0, "layer2.linear2": 0, "layer3.linear2": 0,
                       "layer2.batchnorm": 1, "layer3.linear1": 1, "layer3.batchnorm": 1})"));
  Json third = Linear(4, 4);
  third["parameters"] = {{"weight", SameAs("linear1.weight")}, {"bias", SameAs("linear1.bias")}};
  EXPECT_EQ(Map(Tree(Container("M", {{"linear1", Linear(4, 4)},
                                     {"linear2", Linear(6, 6)},
                                     {"linear3", third},
                                     {"linear4", Linear(6, 6)}})),
                "0=250,1=400"),
            Parsed(R"({"linear1": 0, "linear2": 1, "linear3": 0, "linear4": 1})"));
}

TEST(Place, RoomIsKeptForTiedLayersToo) {
  Json c = Linear(4, 4);
  c["parameters"]["weight"] = SameAs("a.weight");
  ModuleTree tree = Tree(Container("M", {{"a", Linear(4, 4)}, {"c", c}}));
  EXPECT_EQ(Map(tree, "0=111,1=1000"), Parsed(R"({"": 1})"));
  EXPECT_EQ(Map(tree, "0=112,1=1000"), Parsed(R"({"": 0})"));
}

// All of them, by exact name: "1" is not "10".
TEST(Place, TiedToMany) {
  std::vector<Json> layers(15, Linear(10, 10));
  for (size_t i = 1; i < layers.size(); ++i) layers[i]["parameters"]["weight"] = SameAs("0.weight");
  const ModuleTree tree = Tree(Sequential(layers));
  const int64_t all = 440 + 14 * 40, kept_free = 40;
  EXPECT_EQ(tree.modules[0].bytes, all);
  Placement fits = PlaceUnder(tree, "0=" + std::to_string(all + kept_free) + ",1=2000");
  EXPECT_EQ(Map(fits), Parsed(R"({"": 0})"));
  EXPECT_EQ(fits.parts.size(), 15u);
  for (size_t i = 1; i < fits.parts.size(); ++i) EXPECT_EQ(fits.parts[i].why, "tied to 0");
  EXPECT_EQ(Map(tree, "0=" + std::to_string(all + kept_free - 1) + ",1=2000"),
            Parsed(R"({"": 1})"));
}

TEST(Place, ReserveAndNoSplit) {
  Placement mft = PlaceUnder(Model("MFT"), "0=200,1=200");
  EXPECT_EQ(Map(mft), Parsed(R"({"linear1": 0, "batchnorm": 1, "linear2": 1})"));
  EXPECT_TRUE(mft.warnings.empty());
  EXPECT_EQ(Use(mft, "0").used, 64);
  EXPECT_EQ(Use(mft, "0").reserved, 100);
  EXPECT_EQ(Use(mft, "1").used, 172);
  EXPECT_EQ(Use(mft, "1").reserved, 0);
  EXPECT_EQ(Map(Model("MFT"), "0=200,1=172,2=200"), Map(mft));
  PlaceOptions options;
  options.no_split = {"MFT"};
  EXPECT_EQ(Map(Model("MFTx3"), "0=500,1=500", options), Parsed(R"({"0": 0, "1": 1, "2": 1})"));
}

TEST(Place, ANameThatContinuesAnother) {
  Json inner = ModuleJson("Sub", {{"parameter", SameAs("compute.weight")}});
  Json compute =
      ModuleJson("Compute", {{"weight", TensorJson({1})}}, {{"weight_submodule", inner}});
  ModuleTree tree = Tree(Container("M", {{"compute", compute}}));
  EXPECT_TRUE(CheckDeviceMap(tree, PlaceUnder(tree, "0=4,cpu=96000").map).Usable());
}

Json WithBuffer(Json module, const std::vector<int64_t>& shape) {
  module["buffers"]["extra"] = TensorJson(shape);
  return module;
}

TEST(Place, WarnsOfBuffersThatDoNotFit) {
  Json model = Container("M", {{"linear1", WithBuffer(Linear(3, 4), {10, 2})},
                               {"batchnorm", WithBuffer(BatchNorm(4), {10, 3})},
                               {"linear2", WithBuffer(Linear(4, 5), {10, 3})}});
  PlaceOptions offload;
  offload.offload_buffers = true;
  auto expected = Parsed(R"({"linear1": 0, "batchnorm": "cpu", "linear2": "cpu"})");
  Placement stay = PlaceUnder(Tree(model), "0=400,cpu=1GB");
  EXPECT_EQ(Map(stay), expected);
  EXPECT_TRUE(Warns(stay, "buffers"));
  // Buffers are charged to the device they stay on: 144 of linear1, 160 and 120 of the others.
  EXPECT_EQ(Use(stay, "0").used, 144 + 160 + 120);
  EXPECT_EQ(Use(stay, "cpu").used, 32 + 100);
  Placement travel = PlaceUnder(Tree(model), "0=400,cpu=1GB", offload);
  EXPECT_EQ(Map(travel), expected);
  EXPECT_TRUE(travel.warnings.empty());
  EXPECT_EQ(Use(travel, "cpu").used, 192 + 220);

  model["children"]["linear3"] = WithBuffer(Linear(4, 5), {10, 2});
  expected = Parsed(R"({"linear1": 0, "batchnorm": 1, "linear2": "cpu", "linear3": "cpu"})");
  Placement roomy = PlaceUnder(Tree(model), "0=400,1=400,cpu=1GB");
  EXPECT_EQ(Map(roomy), expected);
  EXPECT_TRUE(roomy.warnings.empty());
  Placement tight = PlaceUnder(Tree(model), "0=400,1=200,cpu=1GB");
  EXPECT_EQ(Map(tight), expected);
  EXPECT_TRUE(Warns(tight, "buffers"));
  EXPECT_TRUE(PlaceUnder(Tree(model), "0=400,1=200,cpu=1GB", offload).warnings.empty());

  PlaceOptions fallback;
  fallback.fallback = true;
  Placement last = PlaceUnder(Tree(Container("M", {{"linear1", WithBuffer(Linear(10, 10), {5})},
                                                   {"batchnorm", WithBuffer(BatchNorm(10), {5})},
                                                   {"linear2", WithBuffer(Linear(10, 10), {5})}})),
                              "0=678", fallback);
  EXPECT_EQ(Map(last), Parsed(R"({"linear1": "disk", "batchnorm": 0, "linear2": "disk"})"));
  EXPECT_TRUE(Warns(last, "buffers"));
}

TEST(Place, FallbackFillsAnEmptyDevice) {
  PlaceOptions fallback;
  fallback.fallback = true;
  Placement without = PlaceUnder(Model("FB"), "0=256");
  EXPECT_EQ(Map(without), Parsed(R"({"": "disk"})"));
  EXPECT_TRUE(Warns(without, "insufficient memory"));
  EXPECT_EQ(Map(Model("FB"), "0=256", fallback),
            Parsed(R"({"module.linear1": "disk", "module.linear2": 0, "module.linear3": "disk"})"));
  // A module before its parts, and both before what follows them, in the order of accelerate's
  // search.
  Json nested = Container("M", {{"big", Linear(20, 20)},
                                {"m", Sequential({Linear(9, 9), Linear(3, 3)})},
                                {"s", Linear(2, 2)}});
  EXPECT_EQ(Map(Tree(nested), "0=1740,1=2000", fallback),
            Parsed(R"({"m.1": 0, "big": 1, "m.0": "disk", "s": "disk"})"));
  ModuleTree three = Tree(Sequential({Linear(10, 10), Linear(10, 10), Linear(10, 10)}));
  EXPECT_EQ(Map(three, "0=30", fallback), Parsed(R"({"": "disk"})"));
  Json tied = Linear(10, 10);
  tied["parameters"] = {{"weight", SameAs("linear1.weight")}, {"bias", SameAs("linear1.bias")}};
  EXPECT_EQ(Map(Tree(Container("T", {{"linear1", Linear(10, 10)}, {"linear2", tied}})), "0=600",
                fallback),
            Parsed(R"({"": 0})"));
}

// Cases in which accelerate fails or omits something.
TEST(Place, IsCorrectWhereAccelerateIsNot) {
  // Buffers of split modules.
  Placement blocks = PlaceUnder(Model("Blk2head"), "0=340,1=1000");
  Map(blocks);
  EXPECT_EQ(Use(blocks, "0").used + Use(blocks, "1").used, 432);
  // One module under two names; a tied parameter of a module that is split.
  EXPECT_EQ(Map(Model("SHARED"), "0=1000"), Parsed(R"({"": 0})"));
  for (int limit = 60; limit < 400; limit += 5) {
    Placement tt2 = PlaceUnder(Model("TT2"), "0=" + std::to_string(limit) + ",1=1000");
    Map(tt2);
    EXPECT_EQ(DeviceOf(tt2.map, "a.weight"), DeviceOf(tt2.map, "b.w")) << limit;
  }
  // A holder of two tied tensors counts once.
  PlaceOptions whole;
  whole.no_split = {"Sequential"};
  for (int limit : {160, 200, 250, 319})
    EXPECT_EQ(Map(Model("TIED2"), "0=" + std::to_string(limit) + ",1=1000", whole),
              Parsed(R"({"": 0})"));
  EXPECT_NE(Map(Model("TIED2"), "0=159,1=1000", whole), Parsed(R"({"": 0})"));
  // Small layers are not stranded by a large one.
  Placement strand = PlaceUnder(Model("STRAND"), "0=30000,1=41000");
  Map(strand);
  EXPECT_GT(Use(strand, "0").used, 0);
  EXPECT_EQ(Use(strand, "disk").used, 0);
  // With RAM, they are where accelerate puts them.
  EXPECT_EQ(Map(Model("STRAND"), "0=30000,1=41000,cpu=42000"),
            Parsed(R"({"s1": 1, "big": 1, "s2": "cpu", "s3": "cpu"})"));
  EXPECT_LE(Use(strand, "1").used, 41000);
  // A disk budget holds.
  EXPECT_EQ(Map(Model("MFT"), "cpu=10,disk=236"), Parsed(R"({"": "disk"})"));
  EXPECT_FALSE(PlaceUnder(Model("MFT"), "cpu=10,disk=235").uncovered.empty());
  // Weights tied in a chain of groups stay together.
  Json b = Linear(4, 4), c = Linear(4, 4);
  b["parameters"]["weight"] = SameAs("a.weight");
  c["parameters"]["bias"] = SameAs("b.bias");
  ModuleTree chain = Tree(Container("M", {{"a", Linear(4, 4)}, {"b", b}, {"c", c}}));
  for (int limit = 60; limit < 300; limit += 4)
    EXPECT_TRUE(
        CheckDeviceMap(chain, PlaceUnder(chain, "0=" + std::to_string(limit) + ",1=1000").map)
            .split_ties.empty());
}

std::vector<int64_t> Loads(const Placement& placement, int devices) {
  std::vector<int64_t> loads;
  for (int d = 0; d < devices; ++d) loads.push_back(Use(placement, std::to_string(d)).used);
  return loads;
}

std::string Budgets(int devices, const std::string& each) {
  std::vector<std::string> parts;
  for (int d = 0; d < devices; ++d) parts.push_back(std::to_string(d) + "=" + each);
  return Join(parts, ",");
}

TEST(Balanced, EqualLayersAreSharedEqually) {
  PlaceOptions options;
  options.policy = PlacePolicy::kBalanced;
  for (auto [layers, devices] :
       {std::pair(8, 4), {12, 3}, {12, 4}, {16, 4}, {24, 8}, {32, 8}, {80, 8}}) {
    Placement placement =
        PlaceUnder(Tree(Sequential(std::vector<Json>(static_cast<size_t>(layers), Linear(10, 10)))),
                   Budgets(devices, "1GB"), options);
    EXPECT_EQ(Loads(placement, devices),
              std::vector<int64_t>(static_cast<size_t>(devices), 440 * layers / devices));
  }
  // 10 on 4: the rest is spread as well.
  EXPECT_EQ(Loads(PlaceUnder(Tree(Sequential(std::vector<Json>(10, Linear(10, 10)))),
                             Budgets(4, "1GB"), options),
                  4)
                    .back() >= 880,
            true);
}

TEST(Balanced, HeavyEnds) {
  Json children{{"emb", Embedding(1000, 16)}};
  for (int i = 0; i < 8; ++i) children["h" + std::to_string(i)] = Linear(5, 5);
  children["head"] = Linear(16, 1000, false);
  PlaceOptions options;
  options.policy = PlacePolicy::kBalanced;
  for (const char* each : {"200000", "70000"}) {
    Placement placement = PlaceUnder(Tree(Container("LM", children)), Budgets(2, each), options);
    for (int64_t load : Loads(placement, 2)) EXPECT_LE(load, (128000 + 960) / 2 * 1.1);
    EXPECT_EQ(placement.map.size(), 10u);
  }
}

TEST(Balanced, LowZeroAndGaps) {
  PlaceOptions options;
  options.policy = PlacePolicy::kBalancedLow0;
  ModuleTree eight = Tree(Sequential(std::vector<Json>(8, Linear(10, 10))));
  EXPECT_EQ(Loads(PlaceUnder(eight, Budgets(3, "1GB"), options), 3),
            (std::vector<int64_t>{0, 1760, 1760}));
  // The others are full: device 0 gets the smallest rest.
  EXPECT_EQ(Loads(PlaceUnder(eight, "0=1GB,1=1400,2=1400"), 3)[0] > 0, true);
  EXPECT_EQ(Loads(PlaceUnder(eight, "0=1GB,1=1400,2=1400", options), 3),
            (std::vector<int64_t>{880, 1320, 1320}));
  Placement gap = PlaceUnder(Model("MFT"), "1=300,2=300", options);
  EXPECT_EQ(Use(gap, "1").used + Use(gap, "2").used, 236);
  Placement zero = PlaceUnder(eight, "0=1GB,1=0,2=1GB", options);
  EXPECT_EQ(Use(zero, "0").used, 0);
  EXPECT_EQ(Use(zero, "2").used, 3520);
}

TEST(Balanced, AcceleratesBudgets) {
  auto limits = [](const std::string& given, const std::string& policy = "balanced") {
    PlaceOptions options;
    options.policy = PlacePolicyFromText(policy);
    options.compat_accelerate = true;
    std::string text;
    for (const BudgetUse& use : PlaceUnder(Model("MFT"), given, options).budgets)
      if (use.device != "disk") text += use.device + "=" + std::to_string(use.limit) + " ";
    return text;
  };
  EXPECT_EQ(limits("0=200,1=200"), "0=200 1=200 ");
  EXPECT_EQ(limits("0=200,2=200"), "0=200 2=200 ");
  EXPECT_EQ(limits("0=300,1=300"), "0=215 1=300 ");
  EXPECT_EQ(limits("0=300,1=500"), "0=215 1=500 ");
  EXPECT_EQ(limits("0=300,cpu=1000"), "0=300 cpu=1000 ");
  EXPECT_EQ(limits("0=0,1=300,2=300"), "0=0 1=215 2=300 ");
  EXPECT_EQ(limits("0=0,cpu=100"), "0=0 cpu=100 ");
  EXPECT_EQ(limits("1=300,2=300", "balanced_low_0"), "1=0 2=300 ");
  // The published split of 8 equal layers on 4 devices.
  PlaceOptions options;
  options.policy = PlacePolicy::kBalanced;
  options.compat_accelerate = true;
  ModuleTree eight = Tree(Sequential(std::vector<Json>(8, Linear(10, 10))));
  EXPECT_EQ(Loads(PlaceUnder(eight, Budgets(4, "1GB"), options), 4),
            (std::vector<int64_t>{880, 1320, 1320, 0}));
}

TEST(Place, NoKeyCoversWhatFoundNoPlace) {
  const ModuleTree tree =
      ReadModuleTree(Json{{"", Sequential({Linear(4, 4), Linear(4, 4), Linear(4, 4)})}}, "tree");
  for (const char* policy : {"auto", "balanced", "optimal"}) {
    PlaceOptions options;
    options.policy = PlacePolicyFromText(policy);
    options.budgets = ParseBudgets({"disk=170"});
    const Placement placement = Place(tree, options);
    EXPECT_EQ(placement.map, (DeviceMap{{"0", "disk"}, {"1", "disk"}})) << policy;
    EXPECT_EQ(placement.uncovered, (std::vector<std::string>{"2.weight", "2.bias"})) << policy;
  }
}

TEST(Place, UnknownPoliciesAndDevices) {
  EXPECT_THROW(PlacePolicyFromText("balaned"), Error);
  for (const char* text : {"tpu=10", "-1=1000", "0=1,0=2", "0", "0=1Gb", "0:1", "", "0=-5"})
    EXPECT_THROW(ParseBudgets({text}), Error) << text;
  std::vector<std::string> order;
  for (const Budget& b : ParseBudgets({"disk=1,cpu=5", "10=1,2=1"})) order.push_back(b.device);
  EXPECT_EQ(order, (std::vector<std::string>{"2", "10", "cpu", "disk"}));
}

}  // namespace
}  // namespace pipewright
