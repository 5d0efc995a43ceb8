// Describes the call that a package was made for.
#pragma once
#include <string>
#include <vector>

#include "formats/manifest.h"

namespace pipewright {

struct CallArgument {
  std::string name;
  std::string type;  // other than a tensor: "int"; "" for tensors
  std::string dtype;
  std::vector<std::string> shape;
};

// Returns text such as "(x: float32 [s0, 4], n: int)", or "(x)" for a tensor of unknown type.
std::string CallText(const std::vector<CallArgument>& arguments);

// Returns text such as "the model was exported for the call (x: float32 [s0, 4], mask: float32
// [4])", or, for a TorchScript model without types and sizes, "the model takes (x, mask)".
std::string CallText(const Manifest& manifest);

}  // namespace pipewright
