// Defines the models of the reference cases as module trees.
#pragma once
#include <string>

#include "base/json.h"
#include "plan/placement/tree/module_tree.h"
#include "plan/placement/tree/read_tree.h"

namespace pipewright {

inline Json TensorJson(std::vector<int64_t> shape, const std::string& dtype = "F32") {
  return Json{{"dtype", dtype}, {"shape", shape}};
}
inline Json SameAs(const std::string& name) { return Json{{"same_as", name}}; }

inline Json ModuleJson(const std::string& name, Json parameters, Json children = Json::object(),
                       Json buffers = Json::object()) {
  return Json{
      {"class", name}, {"parameters", parameters}, {"buffers", buffers}, {"children", children}};
}
inline Json Linear(int64_t in, int64_t out, bool bias = true) {
  Json parameters{{"weight", TensorJson({out, in})}};
  if (bias) parameters["bias"] = TensorJson({out});
  return ModuleJson("Linear", parameters);
}
inline Json BatchNorm(int64_t n) {
  return ModuleJson("BatchNorm1d", {{"weight", TensorJson({n})}, {"bias", TensorJson({n})}},
                    Json::object(),
                    {{"running_mean", TensorJson({n})},
                     {"running_var", TensorJson({n})},
                     {"num_batches_tracked", TensorJson({}, "I64")}});
}
inline Json Embedding(int64_t n, int64_t width) {
  return ModuleJson("Embedding", {{"weight", TensorJson({n, width})}});
}
inline Json Container(const std::string& name, Json children) {
  return ModuleJson(name, Json::object(), children);
}
inline Json Mft() {
  return Container(
      "MFT", {{"linear1", Linear(3, 4)}, {"batchnorm", BatchNorm(4)}, {"linear2", Linear(4, 5)}});
}
inline Json Sequential(std::vector<Json> children) {
  Json named = Json::object();
  for (size_t i = 0; i < children.size(); ++i) named[std::to_string(i)] = children[i];
  return Container("Sequential", named);
}

// Returns a model by the name that the cases use.
inline Json ModelJson(const std::string& name) {
  bool tied = name.size() > 5 && name.substr(name.size() - 5) == "_tied";
  if (name == "MFT") return Mft();
  if (name == "MFT_tied") {
    Json model = Mft();
    model["children"]["linear2"]["parameters"]["weight"] = SameAs("linear1.weight");
    return model;
  }
  if (name == "MFTx2") return Sequential({Mft(), Mft()});
  if (name == "MFTx3") return Sequential({Mft(), Mft(), Mft()});
  if (name == "Blk2head") {
    Json block = Container("Blk", {{"fc1", Linear(4, 4)}, {"fc2", Linear(4, 4)}});
    block["buffers"] = {{"scale", TensorJson({4})}};
    return Container("Blk2head", {{"a", block}, {"b", block}, {"head", Linear(4, 4)}});
  }
  if (name == "LM" || name == "LM_tied") {
    Json head = Linear(4, 10, false);
    if (tied) head["parameters"]["weight"] = SameAs("emb.weight");
    return Container(
        "LM",
        {{"emb", Embedding(10, 4)}, {"h0", Linear(4, 4)}, {"h1", Linear(4, 4)}, {"head", head}});
  }
  if (name == "TIED2") {
    Json x = Linear(4, 4);
    x["parameters"] = {{"weight", SameAs("a.weight")}, {"bias", SameAs("a.bias")}};
    return Container("TIED2", {{"a", Linear(4, 4)},
                               {"b", Container("Sequential", {{"x", x}, {"y", Linear(4, 4)}})}});
  }
  if (name == "TT2")
    return Container("TT2",
                     {{"a", Linear(4, 4)},
                      {"b", ModuleJson("B", {{"w", SameAs("a.weight")}}, {{"c", Linear(4, 4)}})}});
  if (name == "SHARED") {
    Json again = Linear(4, 4);
    again["parameters"] = {{"weight", SameAs("0.weight")}, {"bias", SameAs("0.bias")}};
    return Sequential({Linear(4, 4), again});
  }
  if (name == "STRAND")
    return Container("STRAND", {{"s1", Linear(10, 10)},
                                {"big", Linear(100, 100)},
                                {"s2", Linear(10, 10)},
                                {"s3", Linear(10, 10)}});
  if (name == "FB")
    return Container("FB", {{"module", Container("M", {{"linear1", Linear(10, 4)},
                                                       {"linear2", Linear(4, 4)},
                                                       {"linear3", Linear(4, 8)}})}});
  if (name == "GPT" || name == "GPT_tied") {
    Json norm = ModuleJson("LayerNorm", {{"weight", TensorJson({8})}, {"bias", TensorJson({8})}});
    Json block = Container("Block", {{"ln", norm},
                                     {"qkv", Linear(8, 24)},
                                     {"proj", Linear(8, 8)},
                                     {"up", Linear(8, 32)},
                                     {"down", Linear(32, 8)}});
    Json blocks = Sequential({block, block, block, block});
    Json head = Linear(8, 50, false);
    if (tied) head["parameters"]["weight"] = SameAs("wte.weight");
    return Container("GPT", {{"wte", Embedding(50, 8)},
                             {"wpe", Embedding(16, 8)},
                             {"h", blocks},
                             {"ln_f", norm},
                             {"head", head}});
  }
  throw std::out_of_range(name);
}

inline ModuleTree Tree(const Json& root) { return ReadModuleTree(Json{{"", root}}, "tree.json"); }
inline ModuleTree Model(const std::string& name) { return Tree(ModelJson(name)); }

}  // namespace pipewright
