// Reads model.safetensors.index.json, which maps tensors to files of a folder.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace pipewright {

struct ShardIndex {
  std::map<std::string, std::string> shard_of;  // tensor -> path within the folder, normalized
  std::optional<uint64_t> total_size;           // as the file claims; often wrong
};

// Reads {"metadata": {"total_size": N}, "weight_map": {...}} or the bare map; other keys are
// ignored. Throws Error naming `path` for a name twice and for a shard outside the folder.
ShardIndex ParseShardIndex(std::string_view text, const std::string& path);

}  // namespace pipewright
