#include "plan/placement/tree/module_tree.h"

#include <algorithm>
#include <numeric>

#include "base/dtype.h"
#include "base/error.h"
#include "base/text.h"

namespace pipewright {

static const TreeModule& Module(const ModuleTree& tree, int id) {
  return tree.modules[static_cast<size_t>(id)];
}
static const TreeTensor& Tensor(const ModuleTree& tree, int id) {
  return tree.tensors[static_cast<size_t>(id)];
}

// The bits of an element, and 'f' for types that a change of dtype casts, 'i' for integers and
// bools.
struct Width {
  int bits = 0;
  char kind = 'f';
};

static Width WidthOf(const std::string& dtype, const std::string& where) {
  // Types that safetensors files do not have, and PyTorch's name of one that packs two elements.
  static const std::map<std::string, Width> kOthers = {{"C128", {128, 'f'}},
                                                       {"complex128", {128, 'f'}},
                                                       {"complex32", {32, 'f'}},
                                                       {"I4", {4, 'i'}},
                                                       {"int4", {4, 'i'}},
                                                       {"U4", {4, 'i'}},
                                                       {"uint4", {4, 'i'}},
                                                       {"quint4x2", {4, 'i'}},
                                                       {"quint2x4", {2, 'i'}},
                                                       {"quint8", {8, 'i'}},
                                                       {"qint8", {8, 'i'}},
                                                       {"qint32", {32, 'i'}},
                                                       {"float4_e2m1fn_x2", {8, 'f'}}};
  std::string name = dtype.substr(0, 6) == "torch." ? dtype.substr(6) : dtype;
  auto other = kOthers.find(name);
  if (other != kOthers.end()) return other->second;
  if (const Dtype* known = FindDtype(name)) {
    char first = known->name[0];
    bool integer = first == 'I' || first == 'U' || known->name == std::string("BOOL");
    return {known->bits, integer ? 'i' : 'f'};
  }
  std::vector<std::string> names;
  for (const Dtype& known : Dtypes()) names.insert(names.end(), {known.name, known.torch});
  throw Error(where, "unknown dtype " + Quote(dtype) + Suggest(dtype, names));
}

static int64_t BytesFor(const std::vector<int64_t>& shape, int bits, const std::string& where) {
  __int128 total = bits;
  for (int64_t size : shape) {
    total *= size;
    if (total > INT64_MAX) throw Error(where, "shape " + ShapeText(shape) + " is too large");
  }
  return static_cast<int64_t>((total + 7) / 8);
}

void FinishTree(ModuleTree& tree, const std::vector<std::pair<int, int>>& ties) {
  for (size_t i = tree.modules.size(); i-- > 0;) {
    TreeModule& module = tree.modules[i];
    module.end = std::max(module.end, static_cast<int>(i) + 1);
    if (module.parent >= 0) {
      TreeModule& parent = tree.modules[static_cast<size_t>(module.parent)];
      parent.end = std::max(parent.end, module.end);
    }
  }
  // Groups of ties, by the position of their first member.
  std::vector<int> order(tree.tensors.size()), parent(tree.tensors.size());
  std::iota(parent.begin(), parent.end(), 0);
  order = parent;
  auto before = [&](int a, int b) {
    return std::pair(Tensor(tree, a).buffer, a) < std::pair(Tensor(tree, b).buffer, b);
  };
  auto root = [&](int a) {
    while (parent[static_cast<size_t>(a)] != a) a = parent[static_cast<size_t>(a)];
    return a;
  };
  for (auto [a, b] : ties) {
    int x = root(a), y = root(b);
    if (before(y, x)) std::swap(x, y);
    parent[static_cast<size_t>(y)] = x;
  }
  for (size_t i = 0; i < tree.tensors.size(); ++i)
    tree.tensors[i].first = root(static_cast<int>(i));
  ApplyDtypes(tree, "", {});
}

void ApplyDtypes(ModuleTree& tree, const std::string& dtype,
                 const std::map<std::string, std::string>& special) {
  Width wanted = dtype.empty() ? Width{} : WidthOf(dtype, "--dtype");
  std::vector<std::string> names;
  for (const TreeTensor& tensor : tree.tensors) names.push_back(tensor.name);
  for (const auto& [name, other] : special)
    if (std::find(names.begin(), names.end(), name) == names.end())
      throw Error("--special-dtype", "no tensor " + Quote(name) + Suggest(name, names));
  for (TreeModule& module : tree.modules) module.bytes = 0;
  for (size_t i = 0; i < tree.tensors.size(); ++i) {
    TreeTensor& tensor = tree.tensors[i];
    Width own = WidthOf(tensor.dtype, tensor.name);
    auto found = special.find(tensor.name);
    int bits = own.bits;
    if (found != special.end())
      bits = WidthOf(found->second, "--special-dtype").bits;
    else if (!dtype.empty() && own.kind == 'f')
      bits = std::min(bits, wanted.bits);
    tensor.bytes =
        tensor.first == static_cast<int>(i) ? BytesFor(tensor.shape, bits, tensor.name) : 0;
    int64_t& bytes = tree.modules[static_cast<size_t>(tensor.module)].bytes;
    if (__builtin_add_overflow(bytes, tensor.bytes, &bytes))
      throw Error(tensor.name, "the model is larger than 2^63 bytes");
  }
  for (size_t i = tree.modules.size(); i-- > 1;) {
    int64_t& bytes = tree.modules[static_cast<size_t>(tree.modules[i].parent)].bytes;
    if (__builtin_add_overflow(bytes, tree.modules[i].bytes, &bytes))
      throw Error(tree.modules[i].name, "the model is larger than 2^63 bytes");
  }
}

std::vector<std::pair<std::string, int64_t>> Sizes(const ModuleTree& tree) {
  std::vector<std::pair<std::string, int64_t>> sizes;
  // A module appears if it has a counted tensor, even one without elements.
  std::vector<bool> counts(tree.modules.size(), false);
  for (const TreeTensor& tensor : tree.tensors)
    if (&tensor == &Tensor(tree, tensor.first)) counts[static_cast<size_t>(tensor.module)] = true;
  for (size_t i = tree.modules.size(); i-- > 1;)
    if (counts[i]) counts[static_cast<size_t>(tree.modules[i].parent)] = true;
  counts[0] = true;
  for (size_t i = 0; i < tree.modules.size(); ++i) {
    if (!counts[i]) continue;
    const TreeModule& module = tree.modules[i];
    sizes.push_back({module.name, module.bytes});
    for (const std::vector<int>* list : {&module.parameters, &module.buffers})
      for (int id : *list)
        if (Tensor(tree, id).first == id)
          sizes.push_back({Tensor(tree, id).name, Tensor(tree, id).bytes});
  }
  return sizes;
}

std::vector<std::vector<std::string>> TiedGroups(const ModuleTree& tree) {
  std::map<int, std::vector<std::string>> by_first;
  for (const TreeTensor& tensor : tree.tensors) by_first[tensor.first].push_back(tensor.name);
  std::vector<std::vector<std::string>> groups;
  for (auto& [first, names] : by_first) {
    if (names.size() < 2) continue;
    std::sort(names.begin(), names.end());
    groups.push_back(names);
  }
  std::sort(groups.begin(), groups.end());
  return groups;
}

const std::string& NameOf(const ModuleTree& tree, TreeEntry entry) {
  return entry.is_tensor ? Tensor(tree, entry.id).name : Module(tree, entry.id).name;
}
int64_t BytesOf(const ModuleTree& tree, TreeEntry entry) {
  return entry.is_tensor ? Tensor(tree, entry.id).bytes : Module(tree, entry.id).bytes;
}
bool Holds(const ModuleTree& tree, TreeEntry entry, int tensor) {
  return entry.is_tensor ? entry.id == tensor : tree.Inside(tensor, entry.id);
}

bool CanSplit(const ModuleTree& tree, TreeEntry entry, const std::vector<std::string>& no_split) {
  if (entry.is_tensor || Module(tree, entry.id).children.empty()) return false;
  return std::find(no_split.begin(), no_split.end(), Module(tree, entry.id).class_name) ==
         no_split.end();
}

std::vector<TreeEntry> SplitEntry(const ModuleTree& tree, TreeEntry entry) {
  std::vector<TreeEntry> parts;
  for (int id : Module(tree, entry.id).parameters) parts.push_back({true, id});
  for (int id : Module(tree, entry.id).children) parts.push_back({false, id});
  for (int id : Module(tree, entry.id).buffers) parts.push_back({true, id});
  return parts;
}

LargestLayer FindLargestLayer(const ModuleTree& tree, const std::vector<TreeEntry>& entries,
                              const std::vector<std::string>& no_split) {
  LargestLayer largest;
  std::vector<TreeEntry> stack(entries.rbegin(), entries.rend());
  while (!stack.empty()) {
    TreeEntry entry = stack.back();
    stack.pop_back();
    if (CanSplit(tree, entry, no_split)) {
      const std::vector<int>& children = Module(tree, entry.id).children;
      for (size_t i = children.size(); i-- > 0;) stack.push_back({false, children[i]});
      continue;
    }
    int64_t bytes = BytesOf(tree, entry);
    if (bytes > largest.bytes) largest = {bytes, {}};
    if (bytes == largest.bytes) largest.names.push_back(NameOf(tree, entry));
  }
  return largest;
}

}  // namespace pipewright
