// Compares two checkpoints tensor by tensor.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/weights/checkpoint.h"

namespace pipewright {

struct TensorDifference {
  std::string name;
  std::string reason;     // "dtype F32 and F16", "shape [2] and [3]", "values"
  uint64_t elements = 0;  // "values": number of elements whose bits differ
  double largest = -1;    // their largest difference; -1 if the dtype is not compared as numbers,
                          // NaN if one is NaN
  double squares = 0;     // sum of the squares of their differences, if these are numbers
};

struct CheckpointDifference {
  std::vector<std::string> only_in_first, only_in_second;  // sorted
  std::vector<TensorDifference> different;                 // sorted by name
  bool Equal() const {
    return only_in_first.empty() && only_in_second.empty() && different.empty();
  }
};

// Reads both in pieces; memory does not grow with their size. Metadata is not compared. If one side
// leaves out a tied name, the name that it kept is compared instead. Throws Error if tensors that
// repeat their elements exceed `most_bytes` (see CheckRepeats).
CheckpointDifference Diff(const Checkpoint& first, const Checkpoint& second,
                          uint64_t most_bytes = 0);

// Returns true if two tensors of a checkpoint have the same dtype, shape and bits.
bool SameBits(const Checkpoint& checkpoint, const StoredTensor& a, const StoredTensor& b);
// The error where a file has different values under two names of one weight.
Error TiedNamesDiffer(const std::string& path, const std::string& a, const std::string& b);

}  // namespace pipewright
