#include "formats/weights/shard.h"

#include <cstdio>
#include <filesystem>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"

namespace pipewright {

namespace fs = std::filesystem;

std::vector<size_t> SplitIntoShards(const std::vector<uint64_t>& sizes, uint64_t limit) {
  std::vector<size_t> counts;
  uint64_t used = 0;
  for (uint64_t size : sizes) {
    if (counts.empty() || size > limit || used > limit - size) counts.push_back(0), used = 0;
    ++counts.back();
    used += size;
  }
  return counts;
}

std::vector<std::string> WriteShards(const Checkpoint& checkpoint, const std::string& folder,
                                     uint64_t limit, const WriteChoices& choices) {
  if (fs::exists(folder) && (!fs::is_directory(folder) || !fs::is_empty(folder)))
    throw Error(folder, "already exists and is not an empty folder");
  return WriteShardsNamed(checkpoint, folder, "model", limit, choices);
}

std::vector<std::string> WriteShardsNamed(const Checkpoint& checkpoint, const std::string& folder,
                                          const std::string& word, uint64_t limit,
                                          const WriteChoices& choices) {
  std::map<std::string, std::string> metadata = checkpoint.metadata;
  std::vector<TensorToWrite> tensors = TensorsToWrite(checkpoint, choices, metadata);
  std::vector<uint64_t> sizes;
  uint64_t total = 0;
  for (const TensorToWrite& tensor : tensors) {
    sizes.push_back(TensorBytes(*FindDtype(tensor.dtype), tensor.shape, tensor.name));
    total += sizes.back();
  }
  std::vector<size_t> counts = SplitIntoShards(sizes, limit);
  if (!folder.empty()) fs::create_directories(folder);
  std::vector<std::string> files;
  if (counts.size() <= 1) {
    files.push_back(word + ".safetensors");
    WriteSafetensors((fs::path(folder) / files[0]).string(), std::move(tensors), metadata);
    return files;
  }
  std::map<std::string, std::string> shard_of;
  size_t next = 0;
  for (size_t shard = 0; shard < counts.size(); ++shard) {
    char number[64];
    std::snprintf(number, sizeof number, "-%05zu-of-%05zu.safetensors", shard + 1, counts.size());
    const std::string name = word + number;
    files.push_back(name);
    std::vector<TensorToWrite> part;
    for (size_t i = 0; i < counts[shard]; ++i, ++next) {
      shard_of[tensors[next].name] = name;
      part.push_back(std::move(tensors[next]));
    }
    WriteSafetensors((fs::path(folder) / name).string(), std::move(part), metadata);
  }
  nlohmann::json index;
  index["metadata"]["total_size"] = total;
  index["weight_map"] = shard_of;
  files.push_back(word + ".safetensors.index.json");
  WriteFile((fs::path(folder) / files.back()).string(), index.dump(2) + "\n");
  return files;
}

}  // namespace pipewright
