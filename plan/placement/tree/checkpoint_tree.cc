#include "plan/placement/tree/checkpoint_tree.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

namespace {

bool IsNumber(const std::string& text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

struct Node {
  std::vector<std::string> names;  // children, in the checkpoint's order
  std::map<std::string, int> children;
  std::vector<size_t> tensors;
};

}  // namespace

ModuleTree TreeOfCheckpoint(const Checkpoint& checkpoint) {
  std::vector<Node> nodes(1);
  std::vector<StoredTensor> tensors = checkpoint.tensors;
  std::map<std::string, size_t> id_of;
  for (size_t i = 0; i < tensors.size(); ++i) id_of[tensors[i].name] = i;
  for (const auto& [dropped, kept] : checkpoint.metadata) {
    auto found = id_of.find(kept);
    if (found == id_of.end() || id_of.count(dropped)) continue;
    id_of[dropped] = tensors.size();
    tensors.push_back(tensors[found->second]);
    tensors.back().name = dropped;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<std::string> path = Split(tensors[i].name, '.');
    int at = 0;
    for (size_t part = 0; part + 1 < path.size(); ++part) {
      auto [found, added] = nodes[static_cast<size_t>(at)].children.insert(
          {path[part], static_cast<int>(nodes.size())});
      int next = found->second;
      if (added) {
        nodes[static_cast<size_t>(at)].names.push_back(path[part]);
        nodes.emplace_back();
      }
      at = next;
    }
    nodes[static_cast<size_t>(at)].tensors.push_back(i);
  }
  ModuleTree tree;
  std::map<std::string, int> ids;
  struct Pending {
    int node;
    std::string name;
    int parent;
  };
  std::vector<Pending> stack = {{0, "", -1}};
  while (!stack.empty()) {
    Pending next = stack.back();
    stack.pop_back();
    Node& node = nodes[static_cast<size_t>(next.node)];
    int id = static_cast<int>(tree.modules.size());
    TreeModule module;
    module.name = next.name;
    module.parent = next.parent;
    for (size_t i : node.tensors) {
      module.parameters.push_back(static_cast<int>(tree.tensors.size()));
      ids[tensors[i].name] = module.parameters.back();
      TreeTensor tensor;
      tensor.name = tensors[i].name, tensor.dtype = tensors[i].dtype;
      tensor.shape = tensors[i].shape, tensor.module = id;
      tree.tensors.push_back(tensor);
    }
    if (next.parent >= 0) tree.modules[static_cast<size_t>(next.parent)].children.push_back(id);
    tree.modules.push_back(module);
    if (std::all_of(node.names.begin(), node.names.end(), IsNumber))
      std::stable_sort(
          node.names.begin(), node.names.end(),
          [](const std::string& a, const std::string& b) { return std::stol(a) < std::stol(b); });
    for (size_t i = node.names.size(); i-- > 0;)
      stack.push_back({node.children[node.names[i]],
                       next.name.empty() ? node.names[i] : next.name + "." + node.names[i], id});
  }
  std::vector<std::pair<int, int>> ties;
  using View = std::tuple<uint64_t, std::vector<int64_t>, std::vector<int64_t>, std::string>;
  for (const auto& group : SharedGroups(Extents(checkpoint))) {
    std::map<View, std::string> first;  // parts of one buffer are not one tensor
    for (const std::string& name : group) {
      const StoredTensor& one = tensors[id_of[name]];
      const auto [found, fresh] =
          first.try_emplace({one.offset, one.shape, one.strides, one.dtype}, name);
      if (!fresh) ties.push_back({ids[found->second], ids[name]});
    }
  }
  for (const auto& [dropped, kept] : checkpoint.metadata)
    if (ids.count(dropped) && ids.count(kept)) ties.push_back({ids[kept], ids[dropped]});
  FinishTree(tree, ties);
  return tree;
}

}  // namespace pipewright
