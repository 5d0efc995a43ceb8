// The model that is placed: a tree of modules with named tensors, sizes and ties, without values.
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
  int module = -1;      // its owner
  int64_t bytes = 0;
  // The first tensor of the tied group, or this one if it is not tied. The order is that of
  // PyTorch's named_parameters, then named_buffers. Only the first tensor's bytes count.
  int first = -1;
};
// Returns true if all names of a tensor must be on one device, as for parameters. Buffers are only
// read: each device that needs one has a copy.
inline bool StaysTogether(const TreeTensor& first) { return !first.buffer; }

struct TreeModule {
  std::string name;        // path from the root, "" for the root
  std::string class_name;  // "" if unknown
  int parent = -1;
  std::vector<int> children, parameters, buffers;  // in the order of the model
  int end = 0;                                     // its subtree is the modules [id, end)
  int64_t bytes = 0;  // size of the subtree; tied tensors count only under their first name
};

struct ModuleTree {
  std::vector<TreeModule> modules;  // depth first; 0 is the root
  std::vector<TreeTensor> tensors;  // by module: parameters, then buffers
  bool Inside(int tensor, int module) const {
    int owner = tensors[static_cast<size_t>(tensor)].module;
    return owner >= module && owner < modules[static_cast<size_t>(module)].end;
  }
};

// Fills in `end`, `first` and `bytes`. `ties` are pairs of names of one tensor. Readers call this.
void FinishTree(ModuleTree& tree, const std::vector<std::pair<int, int>>& ties);

// Counts tensors as if they were loaded with other dtypes: those of `special`, by tensor name, and
// `dtype` ("" for none) for other floating-point tensors that are wider. Integers and bools keep
// their dtype. Throws Error for an unknown dtype or tensor.
void ApplyDtypes(ModuleTree& tree, const std::string& dtype,
                 const std::map<std::string, std::string>& special);

// Returns bytes by name, for every module and tensor that has some; "" is the whole model.
std::vector<std::pair<std::string, int64_t>> Sizes(const ModuleTree& tree);

// Returns the groups of two or more names that are one tensor, sorted.
std::vector<std::vector<std::string>> TiedGroups(const ModuleTree& tree);

// A module or a tensor that a device takes as a whole.
struct TreeEntry {
  bool is_tensor = false;
  int id = 0;
  bool operator==(const TreeEntry&) const = default;
};
const std::string& NameOf(const ModuleTree& tree, TreeEntry entry);
int64_t BytesOf(const ModuleTree& tree, TreeEntry entry);
bool Holds(const ModuleTree& tree, TreeEntry entry, int tensor);

// Returns true if SplitEntry can split an entry into its parameters, children and buffers.
bool CanSplit(const ModuleTree& tree, TreeEntry entry, const std::vector<std::string>& no_split);
std::vector<TreeEntry> SplitEntry(const ModuleTree& tree, TreeEntry entry);

// The largest of the entries' layers, and others of the same size, depth first. A layer is a module
// without children or of a class in `no_split`, or a tensor among `entries`.
struct LargestLayer {
  int64_t bytes = 0;
  std::vector<std::string> names;
};
LargestLayer FindLargestLayer(const ModuleTree& tree, const std::vector<TreeEntry>& entries,
                              const std::vector<std::string>& no_split);

}  // namespace pipewright
