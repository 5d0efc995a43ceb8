// Describes a tensor in a file of any format.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace pipewright {

struct StoredTensor {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // in elements, none negative; empty if contiguous
  int file = 0;                  // index into Checkpoint::files
  uint64_t offset = 0;           // bytes from the start of the file to the first element
  uint64_t bytes = 0;            // elements times their size
  // The storage of which it is a view, and which other names may share; "": its own.
  std::string storage;
  uint64_t storage_offset = 0, storage_bytes = 0;  // the storage's place in the file, and size
};

}  // namespace pipewright
