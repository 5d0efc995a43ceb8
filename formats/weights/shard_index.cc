#include "formats/weights/shard_index.h"

#include <filesystem>

#include "base/error.h"
#include "base/json.h"

namespace pipewright {

namespace fs = std::filesystem;

ShardIndex ParseShardIndex(std::string_view text, const std::string& path) {
  const nlohmann::json json = ParseSortedJson(text, path);
  if (!json.is_object()) throw Error(path, "expected a JSON object");
  ShardIndex index;
  auto map = json.find("weight_map");
  auto metadata = json.find("metadata");
  bool whole = map != json.end();
  const nlohmann::json& names = whole ? *map : json;
  if (!names.is_object()) throw Error(path, "\"weight_map\" is not an object");
  if (whole && metadata != json.end() && metadata->is_object()) {
    auto total = metadata->find("total_size");
    if (total != metadata->end() && total->is_number_unsigned())
      index.total_size = total->get<uint64_t>();
  }
  for (const auto& [name, shard] : names.items()) {
    if (!shard.is_string())
      throw Error(path, Quote(name) + ": the name of a shard is expected, found " + shard.dump());
    fs::path relative(shard.get<std::string>());
    // The operating system would cut the name off at a NUL.
    bool leaves = relative.empty() || relative.is_absolute() ||
                  relative.native().find('\0') != std::string::npos;
    for (const fs::path& part : relative) leaves = leaves || part == "..";
    if (leaves)
      throw Error(path, Quote(name) + ": the shard " + shard.dump() + " lies outside the folder");
    index.shard_of[name] = relative.lexically_normal().string();
  }
  return index;
}

}  // namespace pipewright
