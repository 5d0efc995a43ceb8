// The table of element types in safetensors files, with their PyTorch names.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

struct Dtype {
  const char* name;   // as in the file: "F32"
  int bits;           // per element; three types are narrower than a byte
  const char* torch;  // "float32"; "" if PyTorch has no such type
};

// Returns the table in the order of the format's own enumeration, which also determines the order
// of tensors in a file.
const std::vector<Dtype>& Dtypes();

// Finds a type by the file's name or PyTorch's ("F32", "float32", "torch.float32"); nullptr if
// unknown.
const Dtype* FindDtype(std::string_view name);

// Returns the bytes of a tensor. Throws Error naming `where` if the count overflows 64 bits or, for
// types narrower than a byte, is not a whole number of bytes.
uint64_t TensorBytes(const Dtype& dtype, const std::vector<int64_t>& shape,
                     const std::string& where);

// Returns text such as "[2, 3]". A dimension above 2^63-1 is stored as a negative number and
// printed unsigned.
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace pipewright
