// Chooses the tensors that a safetensors file of a checkpoint holds.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "formats/weights/checkpoint.h"

namespace pipewright {

struct WriteChoices {
  bool force_contiguous = false;  // also write tensors that lie with strides in the file
  uint64_t most_bytes = 0;        // that tensors may take which repeat their elements
  // State dicts of torch.save say which names share memory, but not from one file to another.
  // Tensors of different files that are equal to the bit are tied, apart, or refused. Tensors whose
  // elements are all alike, such as biases of zeros, are always apart.
  enum Equal { kRefused, kTied, kApart } equal = kApart;
};

// One name of each group that shares memory; the dropped names are recorded in `metadata`.
// `checkpoint` must outlive the result. Throws Error for what `choices` does not allow.
std::vector<TensorToWrite> TensorsToWrite(const Checkpoint& checkpoint, const WriteChoices& choices,
                                          std::map<std::string, std::string>& metadata);

}  // namespace pipewright
