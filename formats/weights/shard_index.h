// model.safetensors.index.json: which file of a folder holds which tensor.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace pipewright {

struct ShardIndex {
  std::map<std::string, std::string> shard_of;  // tensor -> path within the folder, normalised
  std::optional<uint64_t> total_size;           // as the file claims; often wrong
};

// Reads {"metadata": {"total_size": N}, "weight_map": {...}} or the bare map; other keys are
// ignored. Throws Error naming `path`: a name twice, a shard outside the folder.
ShardIndex ParseShardIndex(std::string_view text, const std::string& path);

}  // namespace pipewright
