// Sizes of every value for one microbatch, known before the first one flows.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "plan/manifest.h"

namespace pipewright {

struct TensorSpec {
  at::ScalarType type = at::kFloat;  // scalars travel as int64, float64 or bool of no dimension
  std::vector<int64_t> sizes;
  bool known = true;  // false: the sizes depend on the data
  int64_t bytes() const;
};

// By value id. `inputs`: one for each input of the model, in order. Sizes come from the manifest's
// expressions; a module whose code was edited, and one that takes values which an edited one
// changed, is run once on zeros instead. Throws Error for inputs that the model was not exported
// for and for edited modules that fail. Sizes that depend on the data are not known.
std::vector<TensorSpec> InferShapes(const std::string& package, const Manifest& manifest,
                                    const std::vector<TensorSpec>& inputs);

}  // namespace pipewright
