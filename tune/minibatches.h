// Merges the minibatches whose gradients a step accumulates.
#pragma once
#include <string>

#include "formats/job.h"
#include "tune/request.h"

namespace pipewright {

// Returns why the minibatches that a step of the job accumulates cannot be one with all their
// microbatches: that could change the samples of a step, of a microbatch or of the validation; the
// job has an order of its own (plan, costs, or a searched or asynchronous schedule); the data
// cannot be read; or the search would take too long. Returns "" if they can.
std::string WhyMinibatchesStay(const Job& job);

// Merges them if they can be one and unless --exact keeps them, so that a step fills and drains the
// pipeline once. Returns a note of what it did.
std::string MergeMinibatches(const TuneRequest& request, Job& job);

}  // namespace pipewright
