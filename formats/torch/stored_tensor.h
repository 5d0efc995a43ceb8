// A tensor as it lies in a file, of whichever format.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

struct StoredTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements, none negative; empty where contiguous
  int file = 0;                  // index into Checkpoint::files
  uint64_t offset = 0;           // bytes from the start of the file to the first element
  uint64_t bytes = 0;            // elements times their size
  // The memory it is a view of, which it may share with other names; "": its own.
  std::string storage;
  uint64_t storage_offset = 0, storage_bytes = 0;  // where that starts in the file, and its size
};

}  // namespace pipewright
