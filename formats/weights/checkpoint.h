// A model's weights, wherever they come from: a safetensors file, shards with an index, a state
// dict of torch.save, or a folder that holds one of them.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "formats/torch/stored_tensor.h"
#include "formats/weights/safetensors.h"
#include "formats/weights/shared_tensors.h"

namespace pipewright {

// The key of a file's metadata that lists the modules whose code was edited in the package of the
// run that wrote it (EditedCode in runtime/module/module_code.h).
inline constexpr char kEditedCode[] = "pipewright.edited";

struct Checkpoint {
  std::string path;                                // as given
  std::vector<std::unique_ptr<MappedFile>> files;  // sorted by path
  std::vector<StoredTensor> tensors;               // in the order they are listed; names differ
  std::map<std::string, std::string> metadata;     // of all files; the first file wins
  std::vector<std::string> warnings;               // what does not hold but does no harm

  const StoredTensor* Find(const std::string& name) const;
};

// `path` is a file, an index (*.index.json) or a folder. A folder is resolved as accelerate does:
// pytorch_model.bin, else model.safetensors, else the one *.index.json; the checkpoints of a run
// (formats/weights/run_checkpoint.h) to the latest. Throws Error: none or
// several of those, a shard that lies outside the folder or is missing, a tensor that is not in the
// shard the index names, whatever the readers of the single formats refuse.
Checkpoint OpenCheckpoint(const std::string& path);

// The payload where it is contiguous in the file: mapped, read when touched.
std::string_view Bytes(const Checkpoint& checkpoint, const StoredTensor& tensor);
// Hands the payload to `sink` in row-major order in pieces of about 1 MiB.
void ReadTensor(const Checkpoint& checkpoint, const StoredTensor& tensor, const ByteSink& sink);

// For the rules of shared tensors.
std::vector<TensorExtent> Extents(const Checkpoint& checkpoint);

// Throws Error where tensors that repeat their elements (a stride of 0) have more bytes than the
// files, and more than `allowed`: a file of 1 KB may describe terabytes.
void CheckRepeats(const Checkpoint& checkpoint, uint64_t allowed);

}  // namespace pipewright
