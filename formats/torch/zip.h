// Reads zip archives. PyTorch's hold uncompressed tensors and compressed code.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

struct ZipEntry {
  std::string name;
  uint64_t offset = 0, size = 0;  // bytes of its content in the file
  bool compressed = false;        // then `content` is the size after decompression
  uint64_t content = 0;
};

bool IsZip(std::string_view file);

// Returns the entries in the order of the archive's directory; reads zip64 too. Throws Error naming
// `path` for damaged or encrypted entries, ranges beyond the file, a name twice, and compressed
// entries unless these are allowed.
std::vector<ZipEntry> ReadZip(std::string_view file, const std::string& path,
                              bool compressed_allowed = false);

// Returns the contents of an entry. Throws Error if it is damaged, or compressed and larger than
// 256 MiB.
std::string ReadEntry(std::string_view file, const ZipEntry& entry, const std::string& path);

}  // namespace pipewright
