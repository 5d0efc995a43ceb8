// The entries of a zip archive that holds them uncompressed, as PyTorch's archives do.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

struct ZipEntry {
  std::string name;
  uint64_t offset = 0, size = 0;  // bytes of its content in the file
};

bool IsZip(std::string_view file);

// In the order of the archive's directory, zip64 included. Throws Error naming `path`: damaged,
// compressed or encrypted entries, ranges beyond the file, a name twice.
std::vector<ZipEntry> ReadZip(std::string_view file, const std::string& path);

}  // namespace pipewright
