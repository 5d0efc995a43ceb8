// Computes a model's outputs.
#pragma once
#include <string>
#include <vector>

#include "runtime/commands/run_options.h"

namespace pipewright {

// Writes the model's outputs for the tensors in `input` to `output`. It must be called on every rank
// of `transport`, and throws the same Error on all of them.
void Infer(const RunOptions& options, Transport& transport);

// Throws what Infer throws before it loads weights, and writes nothing; `output` may be empty.
// Sets `manifest`, in which modules that do not run are `skipped`. Returns its warnings, on rank 0.
std::vector<std::string> CheckInfer(const RunOptions& options, Transport& transport,
                                    Manifest& manifest);

}  // namespace pipewright
