// Reads weights of a file as tensors, one at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/weights/checkpoint.h"

namespace pipewright {

// [begin, end) of a dimension; negative numbers count from its end, as in Python. Out of range is
// an error, not clamped; an end before the begin selects no elements.
struct SliceRange {
  int64_t begin = 0;
  std::optional<int64_t> end = std::nullopt;  // none: to the end
};

class TensorFile {
 public:
  explicit TensorFile(const std::string& path);  // anything that OpenCheckpoint accepts

  const std::string& path() const { return checkpoint_.path; }
  std::vector<std::string> Names() const;  // in the order of the file
  const std::map<std::string, std::string>& Metadata() const { return checkpoint_.metadata; }
  const std::vector<std::string>& Warnings() const { return checkpoint_.warnings; }
  bool Has(const std::string& name) const { return index_.count(name) > 0; }
  // Sizes and strides are torch's: for 4-bit types, torch's last size counts bytes, whereas the
  // file counts numbers. Throws Error with a suggestion.
  const StoredTensor& At(const std::string& name) const;
  // Throws Error like At, and for types that torch lacks (6-bit numbers).
  at::ScalarType DtypeAt(const std::string& name) const;

  // Reads exactly the tensor's bytes into new memory. Threads may share a file.
  at::Tensor Get(const std::string& name) const;
  // Takes ranges of the first dimensions and all of the others. Reads exactly the bytes that it
  // returns, with one read per contiguous stretch.
  at::Tensor GetSlice(const std::string& name, const std::vector<SliceRange>& ranges) const;
  // Passes the payload to `sink` in row-major order, in pieces of about 1 MiB.
  void Stream(const std::string& name, const ByteSink& sink) const;

 private:
  Checkpoint checkpoint_;
  std::map<std::string, size_t> index_;  // into checkpoint_.tensors
};

}  // namespace pipewright
