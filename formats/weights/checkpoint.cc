#include "formats/weights/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/size.h"
#include "base/text.h"
#include "formats/torch/torch_file.h"
#include "formats/weights/run_checkpoint.h"
#include "formats/weights/shard_index.h"

namespace pipewright {

namespace fs = std::filesystem;

static std::string ResolveFolder(std::string folder) {
  if (std::vector<std::string> steps = ListCheckpoints(folder); !steps.empty()) folder = steps[0];
  std::vector<std::string> indexes;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename().string().ends_with(".index.json"))
      indexes.push_back(entry.path().string());
  for (const char* name : {"pytorch_model.bin", "model.safetensors"})
    if (fs::exists(fs::path(folder) / name)) return (fs::path(folder) / name).string();
  if (indexes.size() == 1) return indexes[0];
  std::sort(indexes.begin(), indexes.end());
  if (indexes.empty() && fs::exists(fs::path(folder) / "manifest.json"))
    throw Error(folder, "is a package: the weights of each module are a file of their own",
                "name one: " + (fs::path(folder) / "weights/module0.safetensors").string() +
                    "; what training made of them is where the job's \"save\" says");
  if (indexes.empty())
    throw Error(folder,
                "no weights: neither pytorch_model.bin nor model.safetensors nor an index "
                "(*.index.json) is there");
  throw Error(folder, "several indexes: " + Join(indexes, ", "), "name the one that is meant");
}

// Appends a file's tensors.
static void AddFile(Checkpoint& checkpoint, const std::string& path) {
  int file = static_cast<int>(checkpoint.files.size());
  checkpoint.files.push_back(std::make_unique<MappedFile>(path));
  const MappedFile& mapped = *checkpoint.files.back();
  const std::string_view bytes = mapped.bytes();
  mapped.ReadOn(false);
  if (IsTorchFile(bytes)) {
    for (StoredTensor& tensor : ReadTorchFile(bytes, path)) {
      tensor.file = file;
      tensor.storage = path + ":" + tensor.storage;
      checkpoint.tensors.push_back(std::move(tensor));
    }
    mapped.ReadOn(true);
    return;
  }
  if (path.ends_with(".bin") || path.ends_with(".pt") || path.ends_with(".pth"))
    throw Error(path, "not what torch.save writes: neither a zip archive nor its older format");
  SafetensorsHeader header = ParseSafetensorsHeader(bytes, path);
  mapped.ReadOn(true);
  for (const TensorInfo& info : header.tensors) {
    StoredTensor tensor;
    tensor.name = info.name, tensor.dtype = info.dtype, tensor.shape = info.shape;
    tensor.file = file;
    tensor.offset = header.data_begin + info.begin;
    tensor.bytes = info.end - info.begin;
    checkpoint.tensors.push_back(std::move(tensor));
  }
  checkpoint.metadata.insert(header.metadata.begin(), header.metadata.end());
}

static void AddShards(Checkpoint& checkpoint, const std::string& path) {
  ShardIndex index = ParseShardIndex(ReadFile(path), path);
  const std::map<std::string, std::string>& shards = index.shard_of;
  uint64_t total = 0;
  std::set<std::string> files;
  for (const auto& [name, shard] : shards) files.insert(shard);
  fs::path folder = fs::path(path).parent_path();
  for (const std::string& file : files)
    if (!fs::exists(folder / file)) throw Error(path, "the shard " + Quote(file) + " is missing");
  for (const std::string& file : files) AddFile(checkpoint, (folder / file).string());

  std::vector<StoredTensor> kept;
  std::set<std::string> found;
  for (StoredTensor& tensor : checkpoint.tensors) {
    const std::string& file = checkpoint.files[static_cast<size_t>(tensor.file)]->path();
    auto shard = shards.find(tensor.name);
    if (shard == shards.end()) {
      checkpoint.warnings.push_back(file + ": the tensor " + Quote(tensor.name) +
                                    " is not in the index and is left out");
    } else if ((folder / shard->second).string() == file) {
      found.insert(tensor.name);
      total += tensor.bytes;
      kept.push_back(std::move(tensor));
    }
  }
  checkpoint.tensors = std::move(kept);
  for (const auto& [name, shard] : shards)
    if (!found.count(name))
      throw Error(path, "the tensor " + Quote(name) + " is not in its shard " + Quote(shard));
  if (index.total_size && *index.total_size != total)
    checkpoint.warnings.push_back(path + ": its total_size is " +
                                  std::to_string(*index.total_size) + ", the tensors take " +
                                  std::to_string(total) + " bytes");
}

Checkpoint OpenCheckpoint(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.path = path;
  std::string file = fs::is_directory(path) ? ResolveFolder(path) : path;
  if (file.ends_with(".json"))
    AddShards(checkpoint, file);
  else
    AddFile(checkpoint, file);
  return checkpoint;
}

const StoredTensor* Checkpoint::Find(const std::string& name) const {
  for (const StoredTensor& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

std::string_view Bytes(const Checkpoint& checkpoint, const StoredTensor& tensor) {
  if (!tensor.strides.empty()) throw Error(checkpoint.path, Quote(tensor.name) + " has strides");
  return checkpoint.files[static_cast<size_t>(tensor.file)]->bytes().substr(tensor.offset,
                                                                            tensor.bytes);
}

// Gathers the elements row by row through the mapping.
static void ReadStrided(const Checkpoint& checkpoint, const StoredTensor& tensor,
                        const ByteSink& sink) {
  const char* base = checkpoint.files[static_cast<size_t>(tensor.file)]->data() + tensor.offset;
  size_t unit = static_cast<size_t>(FindDtype(tensor.dtype)->bits) / 8;
  size_t rank = tensor.shape.size();
  std::vector<int64_t> index(rank, 0);
  std::string piece;
  int64_t at = 0;  // in elements, from the first one
  while (true) {
    piece.append(base + at * static_cast<int64_t>(unit), unit);
    if (piece.size() >= 1 << 20) sink(piece), piece.clear();
    size_t axis = rank;
    while (axis-- > 0) {
      at += tensor.strides[axis];
      if (++index[axis] < tensor.shape[axis]) break;
      at -= tensor.strides[axis] * tensor.shape[axis];
      index[axis] = 0;
    }
    if (axis == static_cast<size_t>(-1)) break;
  }
  sink(piece);
}

void ReadTensor(const Checkpoint& checkpoint, const StoredTensor& tensor, const ByteSink& sink) {
  if (!tensor.strides.empty()) return ReadStrided(checkpoint, tensor, sink);
  const MappedFile& file = *checkpoint.files[static_cast<size_t>(tensor.file)];
  constexpr uint64_t kPiece = 1 << 20;
  std::string piece;
  for (uint64_t at = 0; at < tensor.bytes; at += kPiece) {
    piece.resize(std::min(kPiece, tensor.bytes - at));
    file.Read(tensor.offset + at, piece.data(), piece.size());
    sink(piece);
  }
}

std::vector<TensorExtent> Extents(const Checkpoint& checkpoint) {
  std::vector<TensorExtent> extents;
  for (const StoredTensor& tensor : checkpoint.tensors) {
    uint64_t begin = tensor.offset - tensor.storage_offset, end = begin + tensor.bytes;
    if (!tensor.strides.empty()) {
      uint64_t unit = static_cast<uint64_t>(FindDtype(tensor.dtype)->bits) / 8;
      end = begin + unit;
      for (size_t i = 0; i < tensor.shape.size(); ++i)
        end += unit * static_cast<uint64_t>((tensor.shape[i] - 1) * tensor.strides[i]);
    }
    if (tensor.storage.empty() || tensor.bytes == 0)
      extents.push_back({tensor.name, "", 0, 0, 0, 0});
    else
      extents.push_back(
          {tensor.name, tensor.storage, tensor.storage_bytes, begin, end, tensor.bytes});
  }
  return extents;
}

void CheckRepeats(const Checkpoint& checkpoint, uint64_t allowed) {
  uint64_t read = 0, repeated = 0;
  for (const auto& file : checkpoint.files) read += file->bytes().size();
  const StoredTensor* largest = nullptr;
  for (const StoredTensor& tensor : checkpoint.tensors) {
    if (tensor.strides.empty() || tensor.bytes <= tensor.storage_bytes) continue;
    if (__builtin_add_overflow(repeated, tensor.bytes, &repeated)) repeated = UINT64_MAX;
    if (!largest || tensor.bytes > largest->bytes) largest = &tensor;
  }
  if (repeated <= std::max(read, allowed)) return;
  const auto shown = static_cast<int64_t>(std::min<uint64_t>(repeated, INT64_MAX));
  throw Error(checkpoint.path,
              "the tensor " + Quote(largest->name) +
                  " repeats its elements, as expand makes it: written out, such tensors take " +
                  SizeText(shown) + ", where " + SizeText(static_cast<int64_t>(read)) +
                  " were read",
              "--max-size " + std::to_string(shown) + " allows that much");
}

}  // namespace pipewright
