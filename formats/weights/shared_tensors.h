// Chooses which of the names that share memory a file keeps, by the rules of safetensors' torch API
// (safetensors.torch.save_model and load_model, 0.8), on storage extents, without tensors.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pipewright {

// Where a named tensor lies. `storage` tells memories apart: two tensors share only with the same
// device, storage and storage_bytes. A tensor without memory of its own to share (meta, null,
// empty) has storage "".
struct TensorExtent {
  std::string name;
  std::string storage;
  uint64_t storage_bytes = 0;
  uint64_t begin = 0, end = 0;  // bytes from the storage's start: first to one past last element
  uint64_t bytes = 0;           // elements times their size
};

// Returns whether the tensor starts with its storage and has an element for every byte of it.
bool IsComplete(const TensorExtent& tensor);

// Names whose byte ranges overlap, directly or through others of the group; groups of one included.
// Each group is sorted; groups are in the order of their first names.
// (The reference compares a range with the one before it alone and so splits A, A[8:16], A[32:48].)
std::vector<std::vector<std::string>> SharedGroups(const std::vector<TensorExtent>& tensors);

// For each group of two or more: the name that is kept, and the others, sorted. Kept is the
// alphabetically first complete name, if possible one that is not in `discard`, and before all one
// that is in `preferred`. Throws Error when a group has no complete name: its memory would be
// written without an owner. A group of one is written as its own bytes, whatever its storage.
std::map<std::string, std::vector<std::string>> NamesToKeep(
    const std::vector<TensorExtent>& tensors, const std::vector<std::string>& preferred = {},
    const std::vector<std::string>& discard = {});

// Adds dropped name -> kept name, as readers expect it, where the key is not already set.
void RecordDropped(const std::map<std::string, std::vector<std::string>>& kept,
                   std::map<std::string, std::string>& metadata);

// The report of loading `file` into a model: names of the model that nothing gives a value,
// names of the file that the model lacks, or that share memory with another name which is the one
// kept. Both sorted; a strict load requires both to be empty.
struct LoadReport {
  std::vector<std::string> missing, unexpected;
};
LoadReport MatchNames(const std::vector<TensorExtent>& model, const std::vector<std::string>& file);

}  // namespace pipewright
