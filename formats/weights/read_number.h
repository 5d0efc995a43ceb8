// Reads elements of a payload as numbers.
#pragma once
#include <string_view>

namespace pipewright {

// Converts the element at `bytes` (little-endian) of F64, F32, F16, BF16 or an integer type to a
// double. Returns false for other dtypes. Integers beyond 2^53 are rounded.
bool ReadNumber(std::string_view dtype, const char* bytes, double& number);

}  // namespace pipewright
