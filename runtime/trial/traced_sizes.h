// Detects batch sizes that tracing recorded in a model as constants (x.view(4, -1) instead of
// x.view(x.size(0), -1)). Such a model may accept another batch size but mixes its samples.
#pragma once
#include <string>
#include <vector>

#include "runtime/trial/shapes.h"

namespace pipewright {

// Runs the modules on zeros of `inputs`, and on zeros with twice as many samples (first dimension).
// A reshape mixes samples if it gets the same sizes both times, its first size is neither -1 nor
// the number of samples, and a -1 elsewhere absorbs the difference. Returns a description of it
// with the line of the module's code, or "" if there is none or the model takes only one batch
// size. Packages with recorded sizes are not run.
std::string FindTracedSizes(const std::string& package, const Manifest& manifest,
                            const std::vector<TensorSpec>& inputs);

// Returns FILE:LINE of the module code that the calling thread executes, or "" outside such code.
std::string LineOfCode();

}  // namespace pipewright
