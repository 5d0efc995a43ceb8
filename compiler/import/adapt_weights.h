// Weights from elsewhere than the model file.
#pragma once
#include <string>
#include <vector>

#include "passes/model.h"

namespace pipewright {

// Takes the values of parameters and buffers from the checkpoint `path` (plan/weights/checkpoint.h)
// by their names, all of them with one prefix less or more where that fits better. What the model
// file does not hold must be in it; of two absent weights that are one tensor there, one is kept.
// Floats of another dtype are cast. Returns notes for people. Throws Error: names that are missing,
// other shapes.
std::vector<std::string> TakeWeights(Model& model, const std::string& path);

// Throws Error listing the weights that the model file describes and does not hold.
void RefuseAbsentWeights(const Model& model);

// Casts floating parameters and buffers, and floating inputs where they enter, to `dtype`
// ("bfloat16"), as model.to(dtype) does. Throws UsageError: no floating dtype.
void CastWeights(Model& model, const std::string& dtype);

// Weights that overlap in memory without being the same become views of the one that covers them.
// Returns notes for people. Throws Error: none covers the others, or several are trained.
std::vector<std::string> MergeViews(Model& model);

}  // namespace pipewright
