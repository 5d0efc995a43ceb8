// Reads and writes safetensors files. The format: N in 8 bytes, little-endian, then N bytes of JSON
// (the header), then the payloads without holes. https://github.com/huggingface/safetensors
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/mapped_file.h"

namespace pipewright {

struct TensorInfo {
  std::string name;             // any text, also "" and text with NUL
  std::string dtype;            // "F32", ...: one of Dtypes()
  std::vector<int64_t> shape;   // unsigned in the format: a size above 2^63-1 (only ever beside a
                                // zero) appears negative
  uint64_t begin = 0, end = 0;  // bytes, from the start of the data section

  bool operator==(const TensorInfo&) const = default;
};

// Returns the error for a tensor that `path` lacks, with the nearest name and its first few names.
class Error NoTensor(const std::string& path, std::string_view name,
                     const std::vector<std::string>& names);

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;              // sorted by name
  std::map<std::string, std::string> metadata;  // "__metadata__"
  uint64_t data_begin = 0;                      // offset of the data section in the file

  const TensorInfo* Find(std::string_view name) const;  // nullptr if absent
};

// Accepts what the reference parser (safetensors 0.8) accepts, except duplicate tensor names and
// metadata keys. Reads `file` only up to the end of its header. Throws Error naming `path`, in one
// line that ends with the reference's name for the error, such as "(InvalidOffset)".
SafetensorsHeader ParseSafetensorsHeader(std::string_view file, const std::string& path);

// An open file. Its pages are mapped privately and may be written to. Replacing the file on disk by
// a rename leaves an open one intact. Holders of views keep this object alive (std::shared_ptr
// where tensors are made over it).
class SafetensorsFile {
 public:
  // Throws Error if `path` cannot be read or its header is invalid.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const SafetensorsHeader& header() const { return header_; }
  const TensorInfo* Find(std::string_view name) const { return header_.Find(name); }
  // Throws Error with a suggestion if the file has no such tensor.
  const TensorInfo& At(std::string_view name) const;

  // Returns the bytes before the payloads.
  std::string_view HeaderBytes() const { return file_.bytes().substr(0, header_.data_begin); }
  // Returns the mapped payload; its bytes are read when they are touched.
  std::string_view Bytes(const TensorInfo& info) const;
  char* MutableBytes(const TensorInfo& info) const;
  // Reads `size` bytes from `offset` of the payload into `buffer` without touching the mapping, so
  // that memory does not grow. The range must lie within the tensor.
  void Read(const TensorInfo& info, uint64_t offset, char* buffer, uint64_t size) const;

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

// An entry of the metadata without which transformers and accelerate refuse a file that has any.
inline const std::pair<const std::string, std::string> kPytorchFormat = {"format", "pt"};

// Takes the next bytes of a payload.
using ByteSink = std::function<void(std::string_view)>;

// A tensor to write. Its payload is `bytes`, or what `produce` passes to the sink in any number of
// pieces. `produce` runs when the tensor is written, so that payloads need not all be in memory.
struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::string_view bytes = {};
  std::function<void(const ByteSink&)> produce = nullptr;
};

// Returns a tensor to write that is copied from `from` in pieces of 1 MiB.
TensorToWrite CopyOf(const SafetensorsFile& from, const TensorInfo& info);

// Sorts tensors into the order in which WriteSafetensors writes them.
void SortAsWritten(std::vector<TensorToWrite>& tensors);

// Writes to a temporary file beside `path`, syncs, renames. The bytes written do not depend on the
// order of `tensors`. Tensors are in the order of the reference writer: by dtype, widest first,
// then by name, so that each is aligned to its own elements. The header is padded with spaces until
// the data section starts on a 64-byte boundary. Throws Error for a name twice, the name
// "__metadata__", an unknown dtype, and a payload of the wrong size.
void WriteSafetensors(const std::string& path, std::vector<TensorToWrite> tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace pipewright
