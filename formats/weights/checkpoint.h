// Reads a model's weights from a safetensors file, shards with an index, a state dict of
// torch.save, or a folder that holds one of these.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/files/mapped_file.h"
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
  std::map<std::string, std::string> metadata;     // from all files; the first file wins
  std::vector<std::string> warnings;               // about harmless inconsistencies

  const StoredTensor* Find(const std::string& name) const;
};

// Opens a file, an index (*.index.json) or a folder. In a folder it chooses as accelerate does:
// pytorch_model.bin, else model.safetensors, else the only *.index.json. For a folder of a run's
// checkpoints (formats/weights/run_checkpoint.h) it opens the latest. Throws Error if there are
// none or several of these, for a shard that is missing or outside the folder, for a tensor that is
// not in the shard that the index names, and for whatever the readers of the formats refuse.
Checkpoint OpenCheckpoint(const std::string& path);

// Returns the payload of a contiguous tensor: mapped, and read when touched. Throws Error if the
// tensor has strides.
std::string_view Bytes(const Checkpoint& checkpoint, const StoredTensor& tensor);
// Passes the payload to `sink` in row-major order in pieces of about 1 MiB.
void ReadTensor(const Checkpoint& checkpoint, const StoredTensor& tensor, const ByteSink& sink);

// Returns the tensors' places in memory, for the rules of shared_tensors.h.
std::vector<TensorExtent> Extents(const Checkpoint& checkpoint);

// Throws Error if tensors that repeat their elements (a stride of 0) have more bytes than the files
// and more than `allowed`: a file of 1 KB may describe terabytes.
void CheckRepeats(const Checkpoint& checkpoint, uint64_t allowed);

}  // namespace pipewright
