#include "formats/weights/shard.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <regex>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"

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

// Returns true for the names of WriteShardsNamed: word.safetensors, word-00001-of-00003.safetensors
// and the index.
static bool IsOfWord(const std::string& name, const std::string& word) {
  if (!name.starts_with(word)) return false;
  static const std::regex kRest(R"((-\d{5,}-of-\d{5,})?\.safetensors|\.safetensors\.index\.json)");
  return std::regex_match(name.substr(word.size()), kRest);
}

// Throws Error if the folder has other files of the word than those that are written: readers may
// take them.
static void RefuseOthers(const std::string& folder, const std::string& word,
                         const std::vector<std::string>& written) {
  for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : folder))
    if (const std::string name = entry.path().filename().string();
        IsOfWord(name, word) && std::find(written.begin(), written.end(), name) == written.end())
      throw Error(entry.path().string(),
                  "exists, and readers may take it for one of the " +
                      Counted(written.size(), "file") + " to be written",
                  "remove it, or name another folder");
}

// Returns the names of so many shards and of their index, or of the only file.
static std::vector<std::string> ShardNames(const std::string& word, size_t count) {
  if (count <= 1) return {word + ".safetensors"};
  std::vector<std::string> names;
  for (size_t shard = 1; shard <= count; ++shard) {
    char number[64];
    std::snprintf(number, sizeof number, "-%05zu-of-%05zu.safetensors", shard, count);
    names.push_back(word + number);
  }
  names.push_back(word + ".safetensors.index.json");
  return names;
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
  const std::vector<std::string> files = ShardNames(word, counts.size());
  RefuseOthers(folder, word, files);
  auto path = [&](const std::string& name) { return (fs::path(folder) / name).string(); };
  if (files.size() == 1) {
    WriteSafetensors(path(files[0]), std::move(tensors), metadata);
    return files;
  }
  // While shards are being replaced, no index may describe them.
  std::error_code none;
  fs::remove(path(files.back()), none);
  std::map<std::string, std::string> shard_of;
  size_t next = 0;
  for (size_t shard = 0; shard < counts.size(); ++shard) {
    std::vector<TensorToWrite> part;
    for (size_t i = 0; i < counts[shard]; ++i, ++next) {
      shard_of[tensors[next].name] = files[shard];
      part.push_back(std::move(tensors[next]));
    }
    WriteSafetensors(path(files[shard]), std::move(part), metadata);
  }
  nlohmann::json index;
  index["metadata"]["total_size"] = total;
  index["weight_map"] = shard_of;
  WriteFile(path(files.back()), index.dump(2) + "\n");
  return files;
}

}  // namespace pipewright
