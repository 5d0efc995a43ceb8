// Parses .npy files: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

struct NpyHeader {
  std::string dtype;  // torch's name
  std::vector<int64_t> shape;
  uint64_t data_begin = 0;  // bytes
};

// Accepts versions 1 to 3 of the format, C order, little-endian. Throws Error naming `path` for
// others, for types that torch lacks, and for a file whose size does not match its header.
NpyHeader ParseNpyHeader(std::string_view file, const std::string& path);

}  // namespace pipewright
