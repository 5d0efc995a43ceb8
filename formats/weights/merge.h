// Turns a training run's checkpoint into weights that other programs load.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pipewright {

struct MergedCheckpoint {
  std::string from;                // the checkpoint's own folder
  std::vector<std::string> files;  // the written files, the index last
};

// Writes the parameters and persistent buffers of a checkpoint (formats/weights/run_checkpoint.h)
// after verifying all of its shards. In a folder of checkpoints it takes the newest valid one and
// calls `warn` for each newer one. With `limit` 0 it writes one file, `output`. Otherwise it writes
// shards of at most `limit` bytes of payload into the folder `output`, which must be new or empty;
// or, if `output` ends in .safetensors, files NAME-00001-of-00003.safetensors and
// NAME.safetensors.index.json at that place; or one file if that is enough. Throws Error naming the
// shard that is missing or damaged.
MergedCheckpoint MergeRunCheckpoint(const std::string& path, const std::string& output,
                                    uint64_t limit,
                                    const std::function<void(const std::string&)>& warn);

}  // namespace pipewright
