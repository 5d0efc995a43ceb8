// Provides inputs to measure a package with.
#pragma once
#include <string>
#include <vector>

#include "formats/job.h"
#include "formats/manifest.h"
#include "runtime/module/module.h"

namespace pipewright {

// Returns one microbatch for each input of the model: rows of `file` (safetensors, with a tensor
// named after each input), or of PACKAGE/samples.safetensors, the example that the model was
// exported with, or else random numbers. If the first dimension of an input is dynamic, rows are
// repeated or dropped until there are `microbatch` of them (0: as many as there are). Stores the
// origin in `source`, for the user. Throws Error for tensors that are missing or do not fit the
// model.
std::vector<c10::IValue> SampleInputs(const std::string& package, const Manifest& manifest,
                                      const std::string& file, int64_t& microbatch,
                                      std::string& source);

// Returns the same from the first samples of the job's data; 0: the job's microbatch.
std::vector<c10::IValue> SamplesOfJob(const std::string& package, const Manifest& manifest,
                                      const Job& job, int64_t& microbatch, std::string& source);

}  // namespace pipewright
