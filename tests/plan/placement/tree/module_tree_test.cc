#include "plan/placement/tree/module_tree.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/placement/device_map.h"
#include "plan/placement/tree/checkpoint_tree.h"
#include "plan/placement/tree/read_tree.h"
#include "tests/error_text.h"
#include "tests/plan/placement/models.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

using SizeMap = std::map<std::string, int64_t>;
SizeMap SizesOf(const ModuleTree& tree) {
  auto sizes = Sizes(tree);
  return {sizes.begin(), sizes.end()};
}

TEST(ModuleTree, SizesOfEveryPrefix) {
  ModuleTree tree = Model("MFT");
  EXPECT_EQ(SizesOf(tree), (SizeMap{{"", 236},
                                    {"linear1", 64},
                                    {"linear1.weight", 48},
                                    {"linear1.bias", 16},
                                    {"batchnorm", 72},
                                    {"batchnorm.weight", 16},
                                    {"batchnorm.bias", 16},
                                    {"batchnorm.running_mean", 16},
                                    {"batchnorm.running_var", 16},
                                    {"batchnorm.num_batches_tracked", 8},
                                    {"linear2", 100},
                                    {"linear2.weight", 80},
                                    {"linear2.bias", 20}}));
  ApplyDtypes(tree, "float16", {});
  SizeMap half = SizesOf(tree);
  EXPECT_EQ(half[""], 122);
  EXPECT_EQ(half["linear1"], 32);
  EXPECT_EQ(half["batchnorm"], 40);
  EXPECT_EQ(half["batchnorm.num_batches_tracked"], 8);
  ApplyDtypes(tree, "float64", {});  // never grows
  EXPECT_EQ(SizesOf(tree)[""], 236);
  ApplyDtypes(tree, "float16", {{"linear1.weight", "float64"}});
  EXPECT_EQ(SizesOf(tree)[""], 122 - 24 + 96);
  EXPECT_THROW(ApplyDtypes(tree, "float17", {}), Error);
  EXPECT_THROW(ApplyDtypes(tree, "", {{"linear1.weigth", "F16"}}), Error);
  EXPECT_EQ(SizesOf(Model("GPT"))[""], 17472);
  EXPECT_EQ(SizesOf(Model("GPT_tied"))[""], 15872);
}

TEST(ModuleTree, BytesOfBuffers) {
  Json model = Mft();
  model["buffers"]["own"] = TensorJson({20, 10});
  model["children"]["linear1"]["buffers"] = {{"extra", TensorJson({10, 10})}};
  ModuleTree tree = Tree(model);
  auto bytes = [&] {
    int64_t sum = 0;
    for (const TreeTensor& tensor : tree.tensors) sum += tensor.buffer ? tensor.bytes : 0;
    return sum;
  };
  EXPECT_EQ(bytes(), 1240);
  ApplyDtypes(tree, "float16", {});
  EXPECT_EQ(bytes(), 624);
}

TEST(ModuleTree, RealBytesOfNarrowTypes) {
  auto bytes = [](const std::string& dtype, std::vector<int64_t> shape) {
    return SizesOf(Tree(ModuleJson("M", {{"t", TensorJson(shape, dtype)}})))["t"];
  };
  EXPECT_EQ(bytes("BOOL", {12}), 12);
  EXPECT_EQ(bytes("torch.bool", {12}), 12);
  EXPECT_EQ(bytes("F4", {3, 4}), 6);
  EXPECT_EQ(bytes("int4", {5}), 3);
  EXPECT_EQ(bytes("quint4x2", {10}), 5);
  EXPECT_EQ(bytes("float4_e2m1fn_x2", {10}), 10);
  EXPECT_EQ(bytes("F8_E4M3", {10}), 10);
  EXPECT_EQ(bytes("complex128", {2}), 32);
  EXPECT_EQ(bytes("F32", {}), 4);
  EXPECT_EQ(bytes("F32", {0, 7}), 0);
}

TEST(ModuleTree, Ties) {  // only the first name counts
  EXPECT_TRUE(TiedGroups(Model("MFT")).empty());
  EXPECT_EQ(TiedGroups(Model("MFT_tied")),
            (std::vector<std::vector<std::string>>{{"linear1.weight", "linear2.weight"}}));
  EXPECT_EQ(TiedGroups(Model("SHARED")), (std::vector<std::vector<std::string>>{
                                             {"0.bias", "1.bias"}, {"0.weight", "1.weight"}}));
  EXPECT_EQ(SizesOf(Model("LM_tied"))[""], 320);
  EXPECT_EQ(SizesOf(Model("LM_tied")).count("head"), 0u);
  Json four = Container("M", {{"linear1", Linear(4, 4)},
                              {"linear2", Linear(4, 4)},
                              {"linear3", Linear(4, 4)},
                              {"linear4", Linear(4, 4)}});
  Json& layers = four["children"];
  layers["linear2"]["parameters"]["weight"] = SameAs("linear1.weight");
  layers["linear4"]["parameters"]["weight"] = SameAs("linear2.weight");
  using Groups = std::vector<std::vector<std::string>>;
  const Groups three = {{"linear1.weight", "linear2.weight", "linear4.weight"}};
  EXPECT_EQ(TiedGroups(Tree(four)), three);
  layers["linear3"]["parameters"]["bias"] = SameAs("linear1.bias");
  EXPECT_EQ(TiedGroups(Tree(four)), (Groups{{"linear1.bias", "linear3.bias"}, three[0]}));
  const Json nested = Container("M", {{"block1", layers["linear3"]},
                                      {"linear1", Linear(4, 4)},
                                      {"block2", Container("B", {{"fc", layers["linear2"]}})}});
  EXPECT_EQ(TiedGroups(Tree(nested)),
            (Groups{{"block1.bias", "linear1.bias"}, {"block2.fc.weight", "linear1.weight"}}));
  // A chain of names that refer forward is one group under its first name.
  ModuleTree tree =
      Tree(ModuleJson("M", {{"a", SameAs("b")}, {"b", SameAs("c")}, {"c", TensorJson({2})}}));
  EXPECT_EQ(SizesOf(tree), (SizeMap{{"", 8}, {"a", 8}}));
}

TEST(ModuleTree, ErrorsNameThePlace) {
  auto error = [](const Json& root) { return ErrorOf([&] { ReadModuleTree(root, "t.json"); }); };
  auto tensor = [](Json entry) { return Json{{"", ModuleJson("M", {{"w", entry}})}}; };
  EXPECT_NE(error(Json::array()).find("one root"), std::string::npos);
  EXPECT_NE(error(Json{{"x", 1}}).find("one root"), std::string::npos);
  EXPECT_EQ(error(tensor({{"dtype", "F32"}, {"shape", {-1}}})),
            "t.json: \"w\": a dimension must be a whole number of at least 0, not -1");
  EXPECT_NE(error(tensor({{"dtype", "F32"}})).find("same_as"), std::string::npos);
  EXPECT_NE(error(tensor({{"dtype", "F33"}, {"shape", {1}}})).find("did you mean \"F32\""),
            std::string::npos);
  EXPECT_NE(error(tensor({{"same_as", "w"}})).find("forms a cycle"), std::string::npos);
  EXPECT_NE(error(tensor({{"same_as", "x"}})).find("does not exist"), std::string::npos);
  EXPECT_NE(error(tensor({{"shpe", {1}}})).find("did you mean \"shape\""), std::string::npos);
  EXPECT_NE(error(tensor({{"dtype", "F32"}, {"shape", {INT64_MAX, 2}}})).find("too large"),
            std::string::npos);
  Json deep = ModuleJson("M", Json::object());
  for (int i = 0; i < 400; ++i) deep = Json{{"children", {{"c", deep}}}};
  EXPECT_EQ(Tree(deep).modules.size(), 401u);
}

TEST(ModuleTree, LargestLayer) {
  auto largest = [](const std::string& model, std::vector<std::string> no_split = {}) {
    ModuleTree tree = Model(model);
    LargestLayer layer = FindLargestLayer(tree, SplitEntry(tree, {false, 0}), no_split);
    return std::pair(layer.bytes, layer.names);
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(largest("MFT"), std::pair(int64_t{100}, Names{"linear2"}));
  EXPECT_EQ(largest("MFTx3", {"MFT"}), std::pair(int64_t{236}, (Names{"0", "1", "2"})));
  EXPECT_EQ(largest("GPT", {"Block"}),
            std::pair(int64_t{3424}, (Names{"h.0", "h.1", "h.2", "h.3"})));
  EXPECT_EQ(largest("FB"), std::pair(int64_t{176}, Names{"module.linear1"}));
}

TEST(DeviceMap, PrefixesOfOneDeviceAreMerged) {
  auto clean = [](DeviceMap map) {
    map = CleanDeviceMap(map);
    return std::map<std::string, std::string>(map.begin(), map.end());
  };
  using M = std::map<std::string, std::string>;
  EXPECT_EQ(clean({{"a", "0"}, {"b", "0"}, {"c", "0"}}), (M{{"", "0"}}));
  EXPECT_EQ(clean({{"a.x", "0"}, {"a.y", "0"}, {"b.x", "1"}, {"b.y", "1"}, {"c", "1"}}),
            (M{{"a", "0"}, {"b", "1"}, {"c", "1"}}));
  EXPECT_EQ(clean({{"a.x", "0"},
                   {"a.y", "0"},
                   {"b.x.0", "1"},
                   {"b.x.1", "1"},
                   {"b.y.0", "2"},
                   {"b.y.1", "2"},
                   {"c", "2"}}),
            (M{{"a", "0"}, {"b.x", "1"}, {"b.y", "2"}, {"c", "2"}}));
  EXPECT_EQ(clean({{"a", "0"}}), (M{{"a", "0"}}));
}

TEST(DeviceMap, Problems) {
  ModuleTree tree = Model("MFT");
  using Names = std::vector<std::string>;
  auto check = [&](const std::string& json) {
    return CheckDeviceMap(tree, ReadDeviceMap(ParseJson(json, "map"), "map"));
  };
  EXPECT_TRUE(check(R"({"": 0})").Usable());
  EXPECT_TRUE(check(R"({"linear1": 0, "batchnorm": "cpu", "linear2": "disk"})").Usable());
  MapProblems gap = check(R"({"linear1": 0, "linear2": 1})");
  EXPECT_FALSE(gap.Usable());
  EXPECT_EQ(gap.uncovered.size(), 5u);
  EXPECT_EQ(check(R"({"": 0, "linear2": 1, "linear2.bias": 1})").overlapping,
            (Names{"\"\" and \"linear2\"", "\"\" and \"linear2.bias\"",
                   "\"linear2\" and \"linear2.bias\""}));
  MapProblems unknown = check(R"({"": 0, "linear3": 1, "linear": 1})");
  EXPECT_EQ(unknown.unknown, (Names{"\"linear3\" (did you mean \"linear1\"?)",
                                    "\"linear\" (did you mean \"linear1\"?)"}));
  EXPECT_EQ(
      CheckDeviceMap(Model("LM_tied"), {{"emb", "0"}, {"h0", "0"}, {"h1", "0"}, {"head", "1"}})
          .split_ties.size(),
      1u);
  EXPECT_THROW(check(R"({"": "gpu"})"), Error);
  EXPECT_THROW(check(R"({"": -1})"), Error);
  EXPECT_THROW(check(R"([])"), Error);
}

TEST(CheckpointTree, NamesGiveTheTree) {
  std::string path = TempPath("tree.safetensors"), bytes(64, 'x');
  std::vector<TensorToWrite> tensors;
  for (const char* name : {"h.10.w", "h.2.w", "emb.w", "h.2.b", "top"})
    tensors.push_back({name, "F32", {4}, std::string_view(bytes).substr(0, 16)});
  WriteSafetensors(path, tensors, {{"head.w", "emb.w"}, {"format", "pt"}});
  ModuleTree tree = TreeOfCheckpoint(OpenCheckpoint(path));
  std::vector<std::string> names;
  for (const TreeModule& module : tree.modules) names.push_back(module.name);
  EXPECT_EQ(names, (std::vector<std::string>{"", "emb", "h", "h.2", "h.10", "head"}));
  EXPECT_EQ(TiedGroups(tree), (std::vector<std::vector<std::string>>{{"emb.w", "head.w"}}));
  EXPECT_EQ(SizesOf(tree)[""], 80);
}

}  // namespace
}  // namespace pipewright
