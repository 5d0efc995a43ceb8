// Finds dtypes that a recording holds as constants, when weights are cast to another dtype.
#pragma once
#include <set>
#include <string>

#include "passes/graph/model.h"

namespace pipewright {

// Checks a model whose floats of the dtypes `changed` become `dtype`. x.float() and x.to(y.dtype)
// are recorded alike. Casts that the model's line identifies as the first kind stay; for the
// others, which would silently leave `dtype`, throws Error with their lines. Casts of x.to(device),
// which record the dtype of x, follow the change.
void FollowDtype(Model& model, const std::string& dtype, const std::set<at::ScalarType>& changed);

}  // namespace pipewright
