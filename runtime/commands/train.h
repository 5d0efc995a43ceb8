// `pipewright-run train`: trains a model.
#pragma once
#include <cstdint>

#include "runtime/commands/run_options.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// Must be called on every rank of `transport`; throws the same Error on all of them. Returns the
// number of steps run.
int64_t Train(const RunOptions& options, Transport& transport);

}  // namespace pipewright
