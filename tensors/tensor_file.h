// Weights of a file as tensors, read one at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/weights/checkpoint.h"

namespace pipewright {

// [begin, end) of a dimension; negative numbers count from its end, as in Python. Out of range is
// an error, not clamped; an end before the begin gives no elements.
struct SliceRange {
  int64_t begin = 0;
  std::optional<int64_t> end = std::nullopt;  // none: the dimension's
};

class TensorFile {
 public:
  explicit TensorFile(const std::string& path);  // anything OpenCheckpoint takes

  const std::string& path() const { return checkpoint_.path; }
  std::vector<std::string> Names() const;  // in the order of the file
  const std::map<std::string, std::string>& Metadata() const { return checkpoint_.metadata; }
  const std::vector<std::string>& Warnings() const { return checkpoint_.warnings; }
  bool Has(const std::string& name) const { return index_.count(name) > 0; }
  // Sizes and strides are torch's: of two 4-bit numbers in a byte, the last size counts the bytes,
  // where the file counts the numbers. Throws Error with a suggestion.
  const StoredTensor& At(const std::string& name) const;
  // Throws Error for types that torch lacks (6-bit numbers), as At does.
  at::ScalarType DtypeAt(const std::string& name) const;

  // Reads the tensor's bytes, and no others, into memory of its own. Threads may share a file.
  at::Tensor Get(const std::string& name) const;
  // Ranges of the first dimensions; the others whole. Reads the bytes that it returns, and no
  // others, one read for each stretch of them.
  at::Tensor GetSlice(const std::string& name, const std::vector<SliceRange>& ranges) const;
  // The payload in row-major order, in pieces of about 1 MiB.
  void Stream(const std::string& name, const ByteSink& sink) const;

 private:
  Checkpoint checkpoint_;
  std::map<std::string, size_t> index_;  // into checkpoint_.tensors
};

}  // namespace pipewright
