// Merges the minibatches whose gradients a step accumulates.
#pragma once
#include <string>

#include "formats/job.h"
#include "tune/job/request.h"

namespace pipewright {

// Returns why the minibatches that a step of the job accumulates are not merged into one with all
// their microbatches: because a step, a microbatch or the validation might have other samples, the
// job's plan, costs or schedule order a single minibatch, the data cannot be read, or there would
// be more than kMostMicrobatches. Returns "" if they can be merged.
std::string WhyNotMerged(const Job& job);

// Merges them where that is possible and unless --exact keeps them, so that a step fills and drains
// the pipeline once. Returns a note of what it did.
std::string MergeMinibatches(const TuneRequest& request, Job& job);

}  // namespace pipewright
