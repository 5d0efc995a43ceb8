// A training run's checkpoint as weights that others load.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pipewright {

struct MergedCheckpoint {
  std::string from;                // the checkpoint's own folder
  std::vector<std::string> files;  // what was written, the index last
};

// The parameters and persistent buffers of a checkpoint (formats/weights/run_checkpoint.h), every shard
// verified before; of a folder of checkpoints the newest that holds, `warn` being told of those
// that do not. limit 0: one file `output`. Else shards of at most `limit` bytes of payload: into
// the folder `output`, new or empty, or, where its name ends in .safetensors, beside it as
// NAME-00001-of-00003.safetensors with NAME.safetensors.index.json; one file where one is enough.
// Throws Error naming the shard that is missing or damaged.
MergedCheckpoint MergeRunCheckpoint(const std::string& path, const std::string& output,
                                    uint64_t limit,
                                    const std::function<void(const std::string&)>& warn);

}  // namespace pipewright
