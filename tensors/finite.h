// Finds tensors that hold nan or infinities.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace pipewright {

// Returns true if all elements are finite. Reads the tensor once; integers and 8-bit floats count
// as finite.
bool AllFinite(const at::Tensor& tensor);

// Does the same for whole elements, as files hold them.
bool AllFinite(std::string_view bytes, at::ScalarType type);

// Returns which non-finite number a tensor contains: "nan" if any, else "inf" or "-inf"; "" if all
// are finite. Slow: for messages.
std::string NotFinite(const at::Tensor& tensor);

}  // namespace pipewright
