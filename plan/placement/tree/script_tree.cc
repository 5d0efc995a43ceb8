// Format: PyTorch torch/csrc/jit/serialization. data.pkl is an object whose class is in
// code/<its name>.py and whose state is a dict of its attributes.
#include "plan/placement/tree/read_tree.h"
#include "plan/placement/tree/script_tree.h"

#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/torch/archive.h"
#include "formats/torch/pickle.h"
#include "formats/torch/torch_file.h"

namespace pipewright {

namespace {

using Kind = PickleNode::Kind;

constexpr size_t kMostModules = 1 << 20, kMostLevels = 400;

// Returns the names between the quotes of a line `  __parameters__ = ["weight", "bias", ]`.
std::set<std::string> NamesIn(std::string_view line) {
  std::set<std::string> names;
  const std::vector<std::string> pieces = Split(line, '"');
  for (size_t i = 1; i < pieces.size(); i += 2) names.insert(pieces[i]);
  return names;
}

struct ScriptClass {
  std::set<std::string> parameters, buffers;
};

class ScriptTreeReader {
 public:
  ScriptTreeReader(std::string_view file, const std::string& path)
      : path_(path), archive_(file, path) {}

  Json Read() {
    if (!archive_.Has("data.pkl"))
      throw Error(path_, "has no record data.pkl", "save it again with torch.jit.save");
    pickle_ = ParsePickle(archive_.Read("data.pkl"), path_ + ": data.pkl",
                          [](const std::string&) { return true; });
    Json root = Json::object();
    struct Visit {
      int object;
      std::string name;
      Json* node;  // stays valid: its children are added before theirs
      size_t level;
    };
    std::vector<Visit> stack = {{pickle_.root, "", &root, 0}};
    size_t modules = 0;
    while (!stack.empty()) {
      const Visit visit = stack.back();
      stack.pop_back();
      if (++modules > kMostModules || visit.level > kMostLevels)
        throw Error(path_, "its modules are too many, or too deep in one another");
      std::vector<std::pair<std::string, int>> children =
          ReadModule(visit.object, visit.name, *visit.node);
      for (const auto& [child, object] : children)
        (*visit.node)["children"][child] = Json::object();
      for (size_t i = children.size(); i-- > 0;)
        stack.push_back(
            {children[i].second,
             visit.name.empty() ? children[i].first : visit.name + "." + children[i].first,
             &(*visit.node)["children"][children[i].first], visit.level + 1});
    }
    return root;
  }

 private:
  [[noreturn]] void Fail(const std::string& name, const std::string& what) const {
    throw Error(path_ + (name.empty() ? "" : ": " + Quote(name)), what,
                "save it again with torch.jit.save");
  }

  bool IsObject(const PickleNode& node) const {
    return node.kind == Kind::kCall && node.items.size() == 3 &&
           pickle_[node.items[0]].text.rfind("__torch__", 0) == 0 &&
           pickle_[node.items[2]].kind == Kind::kDict;
  }

  // Adds a module's own entries and returns its children.
  std::vector<std::pair<std::string, int>> ReadModule(int id, const std::string& name, Json& node) {
    const PickleNode& object = pickle_[id];
    if (!IsObject(object)) Fail(name, "a module is expected");
    std::string type = pickle_[object.items[0]].text;  // "__torch__.a.b Class"
    const size_t space = type.find(' ');
    const std::string class_name = type.substr(space + 1);
    const ScriptClass& names = ClassOf(type.substr(0, space), class_name);
    node["class"] = class_name;
    std::vector<std::pair<std::string, int>> children;
    std::set<std::string> seen;
    const std::vector<int>& state = pickle_[object.items[2]].items;
    for (size_t i = 0; i + 1 < state.size(); i += 2) {
      const PickleNode& key = pickle_[state[i]];
      if (key.kind != Kind::kText || !seen.insert(key.text).second)
        Fail(name, "an attribute without a name of its own");
      const std::string full = name.empty() ? key.text : name + "." + key.text;
      const PickleNode& value = pickle_[state[i + 1]];
      const bool parameter = names.parameters.count(key.text) > 0;
      if (parameter || names.buffers.count(key.text)) {
        if (value.kind != Kind::kNone)
          node[parameter ? "parameters" : "buffers"][key.text] = ReadTensor(value, full);
      } else if (IsObject(value)) {
        children.push_back({key.text, state[i + 1]});
      }
    }
    return children;
  }

  Json ReadTensor(const PickleNode& value, const std::string& name) {
    auto number = [&](int id) {
      if (pickle_[id].kind != Kind::kInt || pickle_[id].number < 0) Fail(name, "a damaged tensor");
      return pickle_[id].number;
    };
    const bool plain = value.kind == Kind::kCall &&
                       pickle_[value.items[0]].text == "torch._utils _rebuild_tensor_v2";
    if (!plain) Fail(name, "is not a dense tensor of plain numbers");
    const std::vector<int>& arguments = pickle_[value.items[1]].items;
    if (arguments.size() < 4 || pickle_[arguments[0]].kind != Kind::kPersistent)
      Fail(name, "a damaged tensor");
    const PickleNode& storage = pickle_[pickle_[arguments[0]].items[0]];
    if (storage.kind != Kind::kTuple || storage.items.size() < 5) Fail(name, "a damaged tensor");
    const char* dtype = DtypeOfStorage(pickle_[storage.items[1]].text);
    if (!dtype) Fail(name, "an unknown type of storage");
    std::string view =
        pickle_[storage.items[2]].text + ":" + dtype + ":" + std::to_string(number(arguments[1]));
    Json shape = Json::array();
    for (int item : pickle_[arguments[2]].items) {
      shape.push_back(number(item));
      view += "," + std::to_string(number(item));
    }
    for (int item : pickle_[arguments[3]].items) view += ":" + std::to_string(number(item));
    auto [first, fresh] = views_.emplace(view, name);
    if (!fresh) return {{"same_as", first->second}};
    return {{"dtype", dtype}, {"shape", shape}};
  }

  const ScriptClass& ClassOf(const std::string& module, const std::string& name) {
    auto [found, fresh] = classes_.try_emplace(module + " " + name);
    if (!fresh) return found->second;
    std::string file = "code/" + Join(Split(module, '.'), "/") + ".py";
    if (!archive_.Has(file))
      throw Error(path_, "has no record " + file, "save it again with torch.jit.save");
    const std::string code = archive_.Read(file);
    const std::string header = "class " + name + "(";
    size_t at = code.rfind(header, 0) == 0 ? 0 : code.find("\n" + header);
    if (at == std::string_view::npos)
      throw Error(path_ + ": " + file, "has no class " + Quote(name));
    // The two lists are the first lines of a class.
    auto list = [&](const std::string& key) -> std::set<std::string> {
      const size_t begin = code.find("  " + key + " = [", at);
      const size_t next = code.find("\nclass ", at + 1);
      if (begin == std::string::npos || begin > next) return {};
      return NamesIn(code.substr(begin, code.find('\n', begin) - begin));
    };
    found->second = {list("__parameters__"), list("__buffers__")};
    return found->second;
  }

  const std::string& path_;
  const Archive archive_;
  Pickle pickle_;
  std::map<std::string, ScriptClass> classes_;
  std::map<std::string, std::string> views_;  // storage, offset, sizes, strides -> first name
};

}  // namespace

bool IsScript(std::string_view file) {
  if (!IsZip(file)) return false;
  try {
    const Archive archive(file, "");
    return archive.Has("constants.pkl") && archive.Has("data.pkl");
  } catch (const Error&) {
    return false;
  }
}

ModuleTree TreeOfScript(std::string_view file, const std::string& path) {
  Json tree;
  tree[""] = ScriptTreeReader(file, path).Read();
  return ReadModuleTree(tree, path);
}

}  // namespace pipewright
