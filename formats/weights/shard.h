// Writes a checkpoint to several files: model-00001-of-00003.safetensors, ... and an index.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "formats/weights/tensors_to_write.h"

namespace pipewright {

// Returns the number of `sizes`, in order, that go into each shard. A shard ends before the tensor
// that would take it over `limit`; a tensor larger than that gets its own shard.
std::vector<size_t> SplitIntoShards(const std::vector<uint64_t>& sizes, uint64_t limit);

// Writes the checkpoint into `folder`, which is created or must be empty, so that no older shard
// stays behind: shards of at most `limit` bytes of payload in the order of its tensors, and
// model.safetensors.index.json; or model.safetensors alone if one file is enough. Names that share
// memory are written once. Returns the files' names.
std::vector<std::string> WriteShards(const Checkpoint& checkpoint, const std::string& folder,
                                     uint64_t limit, const WriteChoices& choices);
// Does the same in any folder, with `word` in place of "model" in all names. Throws Error if
// the folder has other files with such names.
std::vector<std::string> WriteShardsNamed(const Checkpoint& checkpoint, const std::string& folder,
                                          const std::string& word, uint64_t limit,
                                          const WriteChoices& choices);

}  // namespace pipewright
