// Chooses the tensors that a safetensors file of a checkpoint holds.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "formats/weights/checkpoint.h"

namespace pipewright {

struct WriteChoices {
  bool force_contiguous = false;  // also write tensors that have strides in their file
  uint64_t most_bytes = 0;        // limit for tensors that repeat their elements (CheckRepeats)
  // Files of torch.save record which names share memory within a file, but not across files. Says
  // whether bitwise equal tensors of different files are refused, tied or kept apart. Tensors whose
  // elements are all alike, such as biases of zeros, are always kept apart.
  enum Equal { kRefused, kTied, kApart } equal = kApart;
};

// Returns one name of each group that shares memory, and records the others in `metadata`.
// `checkpoint` must outlive the result. Throws Error for what `choices` does not allow.
std::vector<TensorToWrite> TensorsToWrite(const Checkpoint& checkpoint, const WriteChoices& choices,
                                          std::map<std::string, std::string>& metadata);

}  // namespace pipewright
