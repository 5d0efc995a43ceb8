// Two checkpoints compared, tensor by tensor.
#pragma once
#include <string>
#include <vector>

#include "formats/weights/checkpoint.h"

namespace pipewright {

struct TensorDifference {
  std::string name;
  std::string reason;     // "dtype F32 and F16", "shape [2] and [3]", "values"
  uint64_t elements = 0;  // "values": how many differ in their bits
  double largest = -1;    // and by how much at most; -1 where the dtype is not compared as numbers,
                          // NaN where one is NaN
};

struct CheckpointDifference {
  std::vector<std::string> only_in_first, only_in_second;  // sorted
  std::vector<TensorDifference> different;                 // sorted by name
  bool Equal() const {
    return only_in_first.empty() && only_in_second.empty() && different.empty();
  }
};

// Reads both in pieces; memory does not grow with their size. Metadata is not compared. A name that
// one side leaves out because it is tied is compared with the one that is there. Throws Error for
// tensors that repeat their elements, beyond `most_bytes` (CheckRepeats).
CheckpointDifference Diff(const Checkpoint& first, const Checkpoint& second,
                          uint64_t most_bytes = 0);

}  // namespace pipewright
