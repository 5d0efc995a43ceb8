// Computes what a rank keeps in memory through the steps of a run, whatever its microbatches take.
#pragma once
#include <cstdint>
#include <vector>

#include "formats/conf.h"
#include "formats/job.h"
#include "formats/manifest.h"

namespace pipewright {

// Bytes of tensors. Weights that are on disk count where they are loaded, and not here.
struct KeptBytes {
  int64_t weights = 0;
  int64_t gradients = 0;  // sums over the microbatches of a step
  int64_t optimizer = 0;  // state in memory, from the first step on, with 32-bit copies of weights
  int64_t Sum() const { return weights + gradients + optimizer; }
};

// Returns those of the modules of a rank. `on_disk` [module][ModuleInfo::held] may be empty.
// `training`: null for a run that only goes forward.
KeptBytes KeptBytesOf(const Manifest& manifest, const Conf& conf,
                      const std::vector<std::vector<bool>>& on_disk, int rank, const Job* training);

}  // namespace pipewright
