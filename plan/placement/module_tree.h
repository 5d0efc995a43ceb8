// A model as placement sees it: a tree of modules with named tensors, sizes and ties; no values.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"

namespace pipewright {

struct TreeTensor {
  std::string name;   // path from the root: "fc.weight"
  std::string dtype;  // as given: "F32" or "float32"
  std::vector<int64_t> shape;
  bool buffer = false;  // else a parameter
  int module = -1;      // that owns it
  int64_t bytes = 0;
  // The first tensor of the tied group, or this one where it is not tied. First is meant in the
  // order of PyTorch's named_parameters, then named_buffers; the first alone counts bytes.
  int first = -1;
};
// Names of one parameter lie together. A buffer is read only: each device that needs it has a copy.
inline bool StaysTogether(const TreeTensor& first) { return !first.buffer; }

struct TreeModule {
  std::string name;        // path from the root, "" for the root
  std::string class_name;  // "" where unknown
  int parent = -1;
  std::vector<int> children, parameters, buffers;  // in the order of the model
  int end = 0;                                     // its subtree is the modules [id, end)
  int64_t bytes = 0;  // of the subtree, each tied tensor under its first name alone
};

struct ModuleTree {
  std::vector<TreeModule> modules;  // depth first; 0 is the root
  std::vector<TreeTensor> tensors;  // by module: parameters, then buffers
  bool Inside(int tensor, int module) const {
    int owner = tensors[static_cast<size_t>(tensor)].module;
    return owner >= module && owner < modules[static_cast<size_t>(module)].end;
  }
};

// Fills in ends, firsts and bytes; `ties` are pairs of names of one tensor. Called by the readers.
void FinishTree(ModuleTree& tree, const std::vector<std::pair<int, int>>& ties);

// Counts tensors as if they were loaded with other dtypes: `special` by tensor name, exactly;
// `dtype` ("" for none) for floating-point tensors that are wider than it. Integers and bools keep
// theirs. Throws Error for an unknown dtype or tensor.
void ApplyDtypes(ModuleTree& tree, const std::string& dtype,
                 const std::map<std::string, std::string>& special);

// Returns bytes by name, for every module and tensor that counts any; "" is the whole model.
std::vector<std::pair<std::string, int64_t>> Sizes(const ModuleTree& tree);

// Returns the groups of two or more names that are one tensor, sorted.
std::vector<std::vector<std::string>> TiedGroups(const ModuleTree& tree);

// A module or a tensor: what a device takes as one.
struct TreeEntry {
  bool is_tensor = false;
  int id = 0;
  bool operator==(const TreeEntry&) const = default;
};
const std::string& NameOf(const ModuleTree& tree, TreeEntry entry);
int64_t BytesOf(const ModuleTree& tree, TreeEntry entry);
bool Holds(const ModuleTree& tree, TreeEntry entry, int tensor);

// Returns whether SplitEntry can cut an entry into its parameters, children and buffers.
bool CanSplit(const ModuleTree& tree, TreeEntry entry, const std::vector<std::string>& no_split);
std::vector<TreeEntry> SplitEntry(const ModuleTree& tree, TreeEntry entry);

// The largest of the entries' layers, and all that are as large, depth first. A layer is a module
// without children or of a class in `no_split`; a tensor among `entries` is one as well.
struct LargestLayer {
  int64_t bytes = 0;
  std::vector<std::string> names;
};
LargestLayer FindLargestLayer(const ModuleTree& tree, const std::vector<TreeEntry>& entries,
                              const std::vector<std::string>& no_split);

}  // namespace pipewright
