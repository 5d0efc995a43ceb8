// Inputs to measure a package with.
#pragma once
#include <string>
#include <vector>

#include "plan/manifest.h"
#include "runtime/module.h"

namespace pipewright {

// One microbatch for each input of the model: rows of `file` (safetensors, a tensor named like each
// input), else of PACKAGE/samples.safetensors, the example that the model was exported with, else
// random numbers. Where the first dimension of an input is dynamic, rows are repeated or left out
// until there are `microbatch` of them; 0: as many as there are. Returns what was used in `source`,
// for people. Throws Error for tensors that are missing or do not fit the model.
std::vector<c10::IValue> SampleInputs(const std::string& package, const Manifest& manifest,
                                      const std::string& file, int64_t& microbatch,
                                      std::string& source);

}  // namespace pipewright
