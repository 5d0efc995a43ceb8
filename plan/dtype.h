// The element types of a safetensors file, and what PyTorch calls them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

struct Dtype {
  const char* name;   // as in the file: "F32"
  int bits;           // an element; three types are narrower than a byte
  const char* torch;  // "float32"; "" where PyTorch has no such type
};

// In the order of the format's own enumeration, which also orders the tensors of a file.
const std::vector<Dtype>& Dtypes();

// By the file's name or PyTorch's ("F32", "float32", "torch.float32"); nullptr when unknown.
const Dtype* FindDtype(std::string_view name);

// Bytes of a tensor. Throws Error naming `where` when the count overflows 64 bits or, for types
// narrower than a byte, is not a whole number of bytes.
uint64_t TensorBytes(const Dtype& dtype, const std::vector<int64_t>& shape,
                     const std::string& where);

// "[2, 3]". A dimension above 2^63-1 is held as a negative number and printed as it was.
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace pipewright
