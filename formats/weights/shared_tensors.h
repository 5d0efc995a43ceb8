// Chooses the names to keep among those that share memory, by the rules of safetensors' torch API
// (safetensors.torch.save_model and load_model, 0.8). Needs storage extents only, not tensors.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pipewright {

// The place of a named tensor in memory. Two tensors can share memory only if `storage` and
// `storage_bytes` are the same. A tensor without memory to share (meta, null, empty) has storage
// "".
struct TensorExtent {
  std::string name;
  std::string storage;
  uint64_t storage_bytes = 0;
  uint64_t begin = 0, end = 0;  // bytes from the storage's start: first to one past last element
  uint64_t bytes = 0;           // elements times their size
};

// Returns true if the tensor starts with its storage and has an element for every byte of it.
bool IsComplete(const TensorExtent& tensor);

// Returns groups of names whose byte ranges overlap, directly or through others of the group; also
// groups of one. Each group is sorted; groups are in the order of their first names.
// (The reference compares a range only with the one before it and so splits A, A[8:16], A[32:48].)
std::vector<std::vector<std::string>> SharedGroups(const std::vector<TensorExtent>& tensors);

// Returns, for each group of two or more, the name to keep and the others, sorted. Keeps the
// alphabetically first complete name among those in `preferred`, else among those not in `discard`,
// else among all. Throws Error if a group has no complete name, because no name would cover its
// memory. A group of one is written as its own bytes, whatever its storage.
std::map<std::string, std::vector<std::string>> NamesToKeep(
    const std::vector<TensorExtent>& tensors, const std::vector<std::string>& preferred = {},
    const std::vector<std::string>& discard = {});

// Adds dropped name -> kept name, as readers expect, unless the key is already set.
void RecordDropped(const std::map<std::string, std::vector<std::string>>& kept,
                   std::map<std::string, std::string>& metadata);

// The result of loading a file into a model, both lists sorted: names of the model that get no
// value, and names of the file that the model lacks or that share memory with the name that is
// kept. A strict load requires both to be empty.
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};
LoadReport MatchNames(const std::vector<TensorExtent>& model, const std::vector<std::string>& file);

}  // namespace pipewright
