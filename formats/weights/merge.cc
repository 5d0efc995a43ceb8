#include "formats/weights/merge.h"

#include <filesystem>
#include <set>

#include "base/error.h"
#include "formats/weights/checkpoint.h"
#include "formats/weights/run_checkpoint.h"
#include "formats/weights/shard.h"

namespace pipewright {

namespace fs = std::filesystem;

namespace {

void VerifyWeights(const RunCheckpoint& checkpoint) {
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : checkpoint.weight_of) shards.insert(shard);
  for (const std::string& shard : shards) VerifyShard(checkpoint, shard);
}

RunCheckpoint FirstThatHolds(const std::string& path,
                             const std::function<void(const std::string&)>& warn) {
  std::vector<std::string> candidates = ListCheckpoints(path);
  if (candidates.empty()) candidates.push_back(path);
  for (size_t i = 0;; ++i) {
    try {
      RunCheckpoint checkpoint = ReadRunCheckpoint(candidates[i]);
      VerifyWeights(checkpoint);
      return checkpoint;
    } catch (const Error& e) {
      if (i + 1 == candidates.size()) throw;
      warn(std::string(e.what()) + "; the next older checkpoint is taken");
    }
  }
}

}  // namespace

MergedCheckpoint MergeRunCheckpoint(const std::string& path, const std::string& output,
                                    uint64_t limit,
                                    const std::function<void(const std::string&)>& warn) {
  RunCheckpoint checkpoint = FirstThatHolds(path, warn);
  Checkpoint weights = OpenCheckpoint(checkpoint.path);
  MergedCheckpoint merged{checkpoint.path, {}};
  fs::path file = output;
  if (limit == 0 && fs::is_directory(file)) file /= "model.safetensors";
  const fs::path folder_of =
      limit == 0 || file.extension() == ".safetensors" ? file.parent_path() : file;
  if (fs::exists(folder_of / "checkpoint.json") &&
      (limit > 0 || fs::exists(file) || file.filename() == "model.safetensors"))
    throw Error(output, "is inside a checkpoint, whose files it would replace or hide",
                "name another folder");
  if (limit == 0) {
    std::map<std::string, std::string> metadata = weights.metadata;
    std::vector<TensorToWrite> tensors = TensorsToWrite(weights, {}, metadata);
    WriteSafetensors(file.string(), std::move(tensors), metadata);
    merged.files = {file.string()};
    return merged;
  }
  std::vector<std::string> names;
  if (file.extension() == ".safetensors") {
    names = WriteShardsNamed(weights, folder_of.string(), file.stem().string(), limit, {});
  } else {
    names = WriteShards(weights, output, limit, {});
  }
  for (const std::string& name : names) merged.files.push_back((folder_of / name).string());
  return merged;
}

}  // namespace pipewright
