// `pipewright-run eval`: computes the loss of a model, without training.
#pragma once
#include <string>
#include <vector>

#include "formats/job.h"
#include "runtime/commands/run_options.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// Computes the mean loss over the job's data (or `steps` minibatches of it), forward only. Must be
// called on every rank of `transport`; throws the same Error on all of them.
void Evaluate(const RunOptions& options, Transport& transport);

// Throws what Evaluate throws before it loads weights, and writes nothing. `job` is filled in.
// Returns its warnings, on rank 0.
std::vector<std::string> CheckEvaluate(const RunOptions& options, Transport& transport, Job& job);

}  // namespace pipewright
