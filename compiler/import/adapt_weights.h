// Takes weights from a checkpoint instead of the model file, and changes their dtype.
#pragma once
#include <string>
#include <vector>

#include "passes/graph/model.h"

namespace pipewright {

// Takes the values of parameters and buffers from the checkpoint `path` (formats/weights/checkpoint.h)
// by name, with one prefix added or removed if that matches more. The checkpoint must contain
// everything that the model file lacks; of two absent weights that are one tensor in the
// checkpoint, one is kept. Floats of another dtype are cast. Returns notes for the user. Throws
// Error for missing names and other shapes.
std::vector<std::string> TakeWeights(Model& model, const std::string& path);

// Throws Error with a list of the weights that the model file describes but does not contain.
void RefuseAbsentWeights(const Model& model);

// Casts floating-point parameters and buffers, and floating-point inputs on entry, to `dtype`
// ("bfloat16"), like model.to(dtype). Throws UsageError if it is not a floating-point dtype.
void CastWeights(Model& model, const std::string& dtype);

// Replaces weights that overlap in memory without being equal by views of the one that covers them.
// Returns notes for the user. Throws Error if none covers the others, or if several are trained.
std::vector<std::string> MergeViews(Model& model);

}  // namespace pipewright
