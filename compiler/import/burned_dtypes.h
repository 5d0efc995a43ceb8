// Dtypes that a recording holds as constants, where the weights are cast to another.
#pragma once
#include <set>
#include <string>

#include "passes/model.h"

namespace pipewright {

// Checks a model whose floats of the dtypes `changed` become `dtype`. x.float() and x.to(y.dtype)
// are recorded alike; those that the model's line tells to be the first stay. Throws Error with the
// lines of the others, which would leave `dtype` without a word. Casts of x.to(device), which
// record the dtype of x, follow it.
void FollowDtype(Model& model, const std::string& dtype, const std::set<at::ScalarType>& changed);

}  // namespace pipewright
