// Finds tensors that hold nan or infinities.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace pipewright {

// Reads the tensor once; integers and floating numbers of 8 bits count as finite.
bool AllFinite(const at::Tensor& tensor);

// The same of whole elements as files hold them.
bool AllFinite(std::string_view bytes, at::ScalarType type);

// Returns what a tensor holds that is not finite: "nan" if it holds one, else "inf" or "-inf"; ""
// if all is finite. Slow: for messages.
std::string NotFinite(const at::Tensor& tensor);

}  // namespace pipewright
