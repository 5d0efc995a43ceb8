#include "plan/placement/tree/export_tree.h"

#include <map>

#include "base/error.h"
#include "base/export_dtype.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/torch/archive.h"
#include "plan/placement/tree/read_tree.h"

namespace pipewright {

namespace {

constexpr const char* kModel = "models/model.json";

// Returns the node of a module in the tree's JSON, and creates it if it is missing.
Json& NodeOf(Json& root, const std::string& name) {
  Json* node = &root;
  if (name.empty()) return *node;
  for (const std::string& part : Split(name, '.')) node = &(*node)["children"][part];
  if (node->is_null()) *node = Json::object();
  return *node;
}

// Parses "key,path,package.Class;...", outermost first. Later calls of a module have paths such as
// "path@1".
void ReadClasses(const std::string& stack, std::map<std::string, std::string>& classes) {
  for (const std::string& entry : Split(stack, ';')) {
    const size_t first = entry.find(','), last = entry.rfind(',');
    if (first == std::string::npos || last == first) continue;
    std::string path = entry.substr(first + 1, last - first - 1);
    path = path.substr(0, path.find('@'));
    const std::string name = entry.substr(last + 1);
    classes.emplace(path, name.substr(name.rfind('.') + 1));
  }
}

Json ReadTree(std::string_view file, const std::string& path) {
  const Archive archive(file, path);
  auto read = [&](const std::string& record) {
    if (!archive.Has(record)) throw Error(path, "has no record " + record, "export it again");
    return ParseJson(archive.Read(record), path + ": " + record);
  };
  const Json model = read(kModel);
  const Json tables[] = {read("data/weights/model_weights_config.json"),
                         read("data/constants/model_constants_config.json")};
  const Json& module = model.at("graph_module");
  Json root = Json::object();
  // Keeps the order of the model's modules.
  for (const Json& call : module.at("module_call_graph"))
    NodeOf(root, call.at("fqn").get<std::string>());
  std::map<std::string, std::string> classes;
  for (const Json& node : module.at("graph").at("nodes"))
    if (node.contains("metadata") && node["metadata"].contains("nn_module_stack"))
      ReadClasses(node["metadata"]["nn_module_stack"].get<std::string>(), classes);
  for (const auto& [name, class_name] : classes)
    if (name.empty() || root.contains("children")) {
      Json* node = &root;
      for (const std::string& part : name.empty() ? std::vector<std::string>() : Split(name, '.'))
        node = node && node->contains("children") && (*node)["children"].contains(part)
                   ? &(*node)["children"][part]
                   : nullptr;
      if (node) (*node)["class"] = class_name;
    }
  std::map<std::string, std::string> first;  // record and shape -> name
  for (const Json& spec : module.at("signature").at("input_specs")) {
    const std::string kind = spec.begin().key();
    if (kind != "parameter" && kind != "buffer") continue;  // constants belong to no module
    const std::string name = spec.begin().value().at(kind + "_name");
    const int table = tables[0].at("config").contains(name) ? 0 : 1;
    if (!tables[table].at("config").contains(name))
      throw Error(path, "weight " + Quote(name) + " is not in the archive");
    const Json& entry = tables[table]["config"][name];
    const Json& meta = entry.at("tensor_meta");
    Json tensor = Json::object();
    const std::string record = std::to_string(table) + entry.at("path_name").get<std::string>();
    const bool meta_device = meta.contains("device") && meta["device"].value("type", "") == "meta";
    auto [same, fresh] = first.emplace(
        record + meta.at("sizes").dump() + meta.at("strides").dump() +
            meta.at("storage_offset").dump() + meta.at("dtype").dump() + (meta_device ? name : ""),
        name);
    if (fresh) {
      tensor["dtype"] = DtypeOfExport(meta.at("dtype").get<int64_t>(), path + ": " + name);
      tensor["shape"] = Json::array();
      for (const Json& size : meta.at("sizes")) tensor["shape"].push_back(size.at("as_int"));
    } else {
      tensor["same_as"] = same->second;
    }
    const size_t dot = name.rfind('.');
    Json& owner = NodeOf(root, dot == std::string::npos ? "" : name.substr(0, dot));
    owner[kind + "s"][name.substr(dot == std::string::npos ? 0 : dot + 1)] = std::move(tensor);
  }
  return root;
}

}  // namespace

bool IsExport(std::string_view file) {
  if (!IsZip(file)) return false;
  try {
    return Archive(file, "").Has(kModel);
  } catch (const Error&) {
  }
  return false;
}

ModuleTree TreeOfExport(std::string_view file, const std::string& path) {
  Json tree;
  try {
    tree[""] = ReadTree(file, path);
  } catch (const nlohmann::json::exception& e) {
    throw Error(path, std::string("is not as torch.export writes it: ") + e.what(),
                "export it again with torch 2.11 to 2.13");
  }
  return ReadModuleTree(tree, path);
}

}  // namespace pipewright
