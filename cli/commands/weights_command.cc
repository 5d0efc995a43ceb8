// pipewright weights list|verify|convert|shard|merge|diff
#include <CLI/CLI.hpp>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/process/messages.h"
#include "base/size.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/commands/print_json.h"
#include "formats/weights/checkpoint.h"
#include "formats/weights/diff.h"
#include "formats/weights/merge.h"
#include "formats/weights/run_checkpoint.h"
#include "formats/weights/shard.h"
#include "formats/weights/tensors_to_write.h"

namespace pipewright {
namespace {

struct WeightsRequest {
  std::string path, other, max_shard_size = "5GB", merge_limit, max_size = "0", equal;
  bool json = false, force_contiguous = false;
};

void Warn(const Checkpoint& checkpoint) {
  for (const std::string& warning : checkpoint.warnings)
    PrintWarning(warning);
}

uint64_t TotalBytes(const Checkpoint& checkpoint) {
  uint64_t total = 0;
  for (const StoredTensor& tensor : checkpoint.tensors) total += tensor.bytes;
  return total;
}

Json ShapeJson(const std::vector<int64_t>& shape) {
  Json sizes = Json::array();
  for (int64_t size : shape) sizes.push_back(static_cast<uint64_t>(size));
  return sizes;
}

void List(const WeightsRequest& options) {
  Checkpoint checkpoint = OpenCheckpoint(options.path);
  auto file_of = [&](const StoredTensor& tensor) {
    return checkpoint.files[static_cast<size_t>(tensor.file)]->path();
  };
  if (options.json) {
    Json tensors = Json::array();
    for (const StoredTensor& tensor : checkpoint.tensors) {
      Json entry{{"name", tensor.name},
                 {"dtype", tensor.dtype},
                 {"shape", ShapeJson(tensor.shape)},
                 {"bytes", tensor.bytes},
                 {"file", file_of(tensor)}};
      if (!tensor.strides.empty()) entry["strides"] = ShapeJson(tensor.strides);
      tensors.push_back(entry);
    }
    Json shared = Json::array();
    for (const auto& group : SharedGroups(Extents(checkpoint)))
      if (group.size() > 1) shared.push_back(group);
    return PrintJson({{"tensors", tensors},
                      {"metadata", checkpoint.metadata},
                      {"shared", shared},
                      {"total_bytes", TotalBytes(checkpoint)},
                      {"warnings", checkpoint.warnings}});
  }
  Warn(checkpoint);
  size_t width = 4, shape_width = 5;
  for (const StoredTensor& tensor : checkpoint.tensors) {
    width = std::max(width, tensor.name.size());
    shape_width = std::max(shape_width, ShapeText(tensor.shape).size());
  }
  auto pad = [](std::string text, size_t to) {
    return text + std::string(to > text.size() ? to - text.size() : 0, ' ');
  };
  for (const StoredTensor& tensor : checkpoint.tensors)
    std::cout << pad(tensor.name, width) << "  " << pad(tensor.dtype, 5) << "  "
              << pad(ShapeText(tensor.shape), shape_width) << "  " << tensor.bytes
              << (checkpoint.files.size() > 1
                      ? "  " + std::filesystem::path(file_of(tensor)).filename().string()
                      : "")
              << "\n";
  for (const auto& [key, value] : checkpoint.metadata)
    std::cout << "metadata " << Quote(key) << ": " << Quote(value) << "\n";
  for (const auto& group : SharedGroups(Extents(checkpoint)))
    if (group.size() > 1) std::cout << "shared: " << Json(group).dump() << "\n";
  std::cout << Counted(checkpoint.tensors.size(), "tensor") << ", "
            << SizeText(static_cast<int64_t>(TotalBytes(checkpoint))) << "\n";
}

// Reduces an error to its first line; the other commands also show the cure.
std::string OneLine(std::string text) {
  text = text.substr(0, text.find('\n'));
  return text;
}

void Verify(const WeightsRequest& options) {
  try {
    Checkpoint checkpoint = OpenCheckpoint(options.path);
    const size_t hashed = VerifyRunCheckpoint(options.path);
    if (options.json)
      return PrintJson({{"valid", true},
                        {"tensors", checkpoint.tensors.size()},
                        {"total_bytes", TotalBytes(checkpoint)},
                        {"hashed_files", hashed},
                        {"warnings", checkpoint.warnings}});
    Warn(checkpoint);
    std::cout << options.path << ": valid, " << Counted(checkpoint.tensors.size(), "tensor") << ", "
              << TotalBytes(checkpoint) << " bytes";
    if (hashed)
      std::cout << ", " << Counted(hashed, "file") << " unchanged since the run wrote them";
    std::cout << "\n";
  } catch (const std::exception& e) {
    if (options.json) {
      PrintJson({{"valid", false}, {"reason", OneLine(e.what())}});
      throw CLI::RuntimeError(kFailure);
    }
    throw Error(OneLine(e.what()));
  }
}

uint64_t MaxSize(const WeightsRequest& options) {
  return static_cast<uint64_t>(ParseSize(options.max_size, "--max-size"));
}

WriteChoices Choices(const WeightsRequest& options) {
  return {options.force_contiguous, MaxSize(options),
          options.equal == "tied"    ? WriteChoices::kTied
          : options.equal == "apart" ? WriteChoices::kApart
                                     : WriteChoices::kRefused};
}

void Convert(const WeightsRequest& options) {
  Checkpoint checkpoint = OpenCheckpoint(options.path);
  Warn(checkpoint);
  std::map<std::string, std::string> metadata = checkpoint.metadata;
  std::vector<TensorToWrite> tensors = TensorsToWrite(checkpoint, Choices(options), metadata);
  size_t count = tensors.size();
  WriteSafetensors(options.other, std::move(tensors), metadata);
  if (options.json)
    PrintJson({{"file", options.other}, {"tensors", count}, {"metadata", metadata}});
  else
    std::cout << options.other << ": " << Counted(count, "tensor") << "\n";
}

uint64_t ShardLimit(const std::string& size) {
  const int64_t limit = ParseSize(size, "--max-shard-size");
  if (limit == 0) throw UsageError("--max-shard-size", "must be more than 0 bytes");
  return static_cast<uint64_t>(limit);
}

void Shard(const WeightsRequest& options) {
  const uint64_t limit = ShardLimit(options.max_shard_size);
  Checkpoint checkpoint = OpenCheckpoint(options.path);
  Warn(checkpoint);
  std::vector<std::string> files = WriteShards(checkpoint, options.other, limit, Choices(options));
  if (options.json) return PrintJson({{"folder", options.other}, {"files", files}});
  for (const std::string& file : files)
    std::cout << (std::filesystem::path(options.other) / file).string() << "\n";
}

void Merge(const WeightsRequest& options) {
  uint64_t limit = 0;
  if (!options.merge_limit.empty()) limit = ShardLimit(options.merge_limit);
  MergedCheckpoint merged = MergeRunCheckpoint(
      options.path, options.other, limit,
      [](const std::string& warning) { PrintWarning(warning); });
  if (options.json) return PrintJson({{"checkpoint", merged.from}, {"files", merged.files}});
  for (const std::string& file : merged.files) std::cout << file << "\n";
}

// Prints the differences. Exits with code 1 if there are any.
void DiffFiles(const WeightsRequest& options) {
  Checkpoint first = OpenCheckpoint(options.path), second = OpenCheckpoint(options.other);
  Warn(first);
  Warn(second);
  CheckpointDifference result = Diff(first, second, MaxSize(options));
  Json different = Json::array();
  for (const TensorDifference& tensor : result.different) {
    different.push_back({{"name", tensor.name}, {"reason", tensor.reason}});
    if (!tensor.elements) continue;
    different.back()["elements"] = tensor.elements;
    if (tensor.largest >= 0) different.back()["largest"] = tensor.largest;
  }
  if (options.json) {
    PrintJson({{"equal", result.Equal()},
               {"only_in_first", result.only_in_first},
               {"only_in_second", result.only_in_second},
               {"different", different}});
  } else {
    for (const std::string& name : result.only_in_first)
      std::cout << "only in " << options.path << ": " << name << "\n";
    for (const std::string& name : result.only_in_second)
      std::cout << "only in " << options.other << ": " << name << "\n";
    for (const TensorDifference& tensor : result.different) {
      std::cout << tensor.name << ": " << tensor.reason;
      if (tensor.elements)
        std::cout << ", " << Counted(tensor.elements, "element")
                  << (tensor.elements == 1 ? " differs" : " differ");
      if (tensor.elements && tensor.largest >= 0) std::cout << ", by at most " << tensor.largest;
      std::cout << "\n";
    }
    if (result.Equal())
      std::cout << Counted(first.tensors.size(), "tensor") << ", bitwise identical\n";
  }
  if (!result.Equal()) throw CLI::RuntimeError(kFailure);
}

CLI::App* Add(CLI::App& app, const std::string& name, const char* description,
              void (*run)(const WeightsRequest&), WeightsRequest& options, const char* arguments) {
  CLI::App* command = app.add_subcommand(name, description);
  command->footer(ExampleText("pipewright weights " + name + " " + arguments));
  command
      ->add_option("path", options.path,
                   "a checkpoint: a file, an index (*.index.json) or a folder")
      ->required();
  command->add_flag("--json", options.json, "print JSON and nothing else");
  command->callback([&options, run] { run(options); });
  return command;
}

}  // namespace

void AddWeightsCommand(CLI::App& app) {
  static WeightsRequest options;
  app.require_subcommand(1);
  Add(app, "list", "list the tensors of a checkpoint: name, dtype, shape, bytes", List, options,
      "model.safetensors");
  Add(app, "verify", "check that a checkpoint is intact: exit code 0, or 1 and the reason", Verify,
      options, "model.safetensors");
  CLI::App* convert = Add(app, "convert", "write any checkpoint as one safetensors file", Convert,
                          options, "pytorch_model.bin model.safetensors");
  convert->add_option("output", options.other, "the file to write")->required();
  CLI::App* shard = Add(app, "shard", "write any checkpoint as shards with an index", Shard,
                        options, "model.safetensors shards --max-shard-size 5GB");
  shard->add_option("output", options.other, "the folder to write, new or empty")->required();
  shard
      ->add_option("--max-shard-size", options.max_shard_size,
                   "largest size of a shard: bytes, or a size such as 5GB")
      ->capture_default_str();
  for (CLI::App* command : {convert, shard}) {
    command->add_flag("--force-contiguous", options.force_contiguous,
                      "also write tensors that are stored with strides, as contiguous tensors");
    command
        ->add_option("--equal", options.equal,
                     "how to write identical tensors from different torch.save files: tied (once) "
                     "or apart (default: refuse them)")
        ->check(CLI::IsMember({"tied", "apart"}));
  }
  CLI::App* merge = app.add_subcommand(
      "merge", "write the weights of a training checkpoint as one safetensors file or as shards");
  merge->footer(ExampleText("pipewright weights merge checkpoints -o model.safetensors"));
  merge
      ->add_option("checkpoint", options.path,
                   "a checkpoint, or a folder of checkpoints (uses the latest)")
      ->required();
  merge->add_option("-o,--output", options.other, "the file or the folder of shards to write")
      ->required();
  merge->add_option("--max-shard-size", options.merge_limit,
                    "write shards of at most this size and an index: bytes, or a size such as 5GB");
  merge->add_flag("--json", options.json, "print JSON and nothing else");
  merge->callback([] { Merge(options); });
  CLI::App* diff =
      Add(app, "diff", "show the differences between two checkpoints: exit code 1 if there are any",
          DiffFiles, options, "first.safetensors second.safetensors");
  diff->add_option("other", options.other, "the other checkpoint")->required();
  for (CLI::App* command : {convert, shard, diff})
    command->add_option("--max-size", options.max_size,
                        "size limit for expanded tensors that would take more than was read: "
                        "bytes, or a size such as 5GB");
}

}  // namespace pipewright
