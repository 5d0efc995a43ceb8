#include "plan/placement/tree/read_tree.h"

#include <map>

#include "base/dtype.h"
#include "base/error.h"
#include "base/text.h"

namespace pipewright {
namespace {

struct Reader {
  const std::string& file;
  ModuleTree tree;
  std::map<std::string, std::string> same_as;  // tensor -> the one that it is another name of
  std::map<std::string, int> ids;              // tensor -> id

  std::string Where(const std::string& name) const {
    return file + ": " + (name.empty() ? "the root" : Quote(name));
  }

  void Name(const std::string& name, const std::string& owner) const {
    if (name.empty() || name.find('.') != std::string::npos)
      throw Error(Where(owner), "the name " + Quote(name) + " is empty or has a dot in it");
  }

  void Tensors(const Json& list, bool buffer, int module) {
    const std::string owner = tree.modules[static_cast<size_t>(module)].name;
    if (!list.is_object())
      throw Error(Where(owner), "\"tensors\" must be an object that maps names to tensors");
    for (const auto& [name, entry] : list.items()) {
      Name(name, owner);
      TreeTensor tensor;
      tensor.name = owner.empty() ? name : owner + "." + name;
      tensor.buffer = buffer;
      tensor.module = module;
      if (ids.count(tensor.name)) throw Error(Where(tensor.name), "the name appears twice");
      CheckKeys(entry, {"dtype", "shape", "same_as", "persistent"}, Where(tensor.name));
      if (entry.contains("same_as")) {
        if (!entry["same_as"].is_string())
          throw Error(Where(tensor.name), "\"same_as\" must be a string");
        same_as[tensor.name] = entry["same_as"];
      }
      if (entry.contains("dtype")) {
        if (!entry["dtype"].is_string())
          throw Error(Where(tensor.name), "\"dtype\" must be a string");
        tensor.dtype = entry["dtype"];
      }
      if (entry.contains("shape")) {
        if (!entry["shape"].is_array()) throw Error(Where(tensor.name), "\"shape\" must be a list");
        for (const Json& size : entry["shape"]) {
          if (!size.is_number_integer() || size < 0 ||
              size.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))
            throw Error(Where(tensor.name),
                        "a dimension must be a whole number of at least 0, not " + size.dump());
          tensor.shape.push_back(size);
        }
      }
      if (!same_as.count(tensor.name) && (!entry.contains("dtype") || !entry.contains("shape")))
        throw Error(Where(tensor.name), "\"dtype\" and \"shape\", or \"same_as\", are required");
      int id = static_cast<int>(tree.tensors.size());
      ids[tensor.name] = id;
      TreeModule& parent = tree.modules[static_cast<size_t>(module)];
      (buffer ? parent.buffers : parent.parameters).push_back(id);
      tree.tensors.push_back(std::move(tensor));
    }
  }

  std::vector<std::pair<int, int>> Ties() {
    std::vector<std::string> names;
    for (const TreeTensor& tensor : tree.tensors) names.push_back(tensor.name);
    std::vector<std::pair<int, int>> ties;
    for (const auto& [name, target] : same_as) {
      // Follows a chain of names to its end; a chain with more links than names is a cycle.
      std::string at = target;
      for (size_t steps = 0; same_as.count(at); at = same_as[at])
        if (++steps > names.size()) throw Error(Where(name), "\"same_as\" forms a cycle");
      auto found = ids.find(at);
      if (found == ids.end())
        throw Error(Where(name), "\"same_as\" names a tensor that does not exist: " + Quote(at) +
                                     Suggest(at, names));
      // The target describes the tensor. (PyTorch lets modules of other declared sizes share one.)
      TreeTensor& tensor = tree.tensors[static_cast<size_t>(ids[name])];
      const TreeTensor& described = tree.tensors[static_cast<size_t>(found->second)];
      if ((!tensor.shape.empty() && tensor.shape != described.shape) ||
          (!tensor.dtype.empty() && tensor.dtype != described.dtype &&
           FindDtype(tensor.dtype) != FindDtype(described.dtype)))
        throw Error(Where(name), "its dtype or shape is not that of " + Quote(at));
      tensor.shape = described.shape;
      tensor.dtype = described.dtype;
      ties.push_back({ids[name], found->second});
    }
    return ties;
  }
};

}  // namespace

ModuleTree ReadModuleTree(const Json& json, const std::string& path) {
  if (!json.is_object() || json.size() != 1 || !json.contains(""))
    throw Error(path, "expected a JSON object with one root named \"\"");
  Reader reader{path, {}, {}, {}};
  struct Pending {
    std::string name;
    const Json* json;
    int parent;
  };
  std::vector<Pending> stack = {{"", &json[""], -1}};
  while (!stack.empty()) {
    Pending next = stack.back();
    stack.pop_back();
    const Json& node = *next.json;
    CheckKeys(node, {"class", "parameters", "buffers", "children"}, reader.Where(next.name));
    int id = static_cast<int>(reader.tree.modules.size());
    TreeModule module;
    module.name = next.name;
    module.parent = next.parent;
    if (node.contains("class")) {
      if (!node["class"].is_string())
        throw Error(reader.Where(next.name), "\"class\" must be a string");
      module.class_name = node["class"];
    }
    if (next.parent >= 0)
      reader.tree.modules[static_cast<size_t>(next.parent)].children.push_back(id);
    reader.tree.modules.push_back(module);
    if (node.contains("parameters")) reader.Tensors(node["parameters"], false, id);
    if (node.contains("buffers")) reader.Tensors(node["buffers"], true, id);
    if (!node.contains("children")) continue;
    if (!node["children"].is_object())
      throw Error(reader.Where(next.name),
                  "\"children\" must be an object that maps names to modules");
    std::vector<Pending> children;
    for (const auto& [name, child] : node["children"].items()) {
      reader.Name(name, next.name);
      std::string full = next.name.empty() ? name : next.name + "." + name;
      if (reader.ids.count(full)) throw Error(reader.Where(full), "a tensor has this name as well");
      children.push_back({full, &child, id});
    }
    stack.insert(stack.end(), children.rbegin(), children.rend());
  }
  FinishTree(reader.tree, reader.Ties());
  return std::move(reader.tree);
}

}  // namespace pipewright
