// Merges the minibatches whose gradients a step accumulates.
#pragma once
#include <string>
#include <vector>

#include "formats/job.h"
#include "formats/written_buffer.h"
#include "tune/request.h"

namespace pipewright {

// Merges the minibatches that a step of the job accumulates into one with all their microbatches,
// so that a step fills and drains the pipeline once. Returns a note of it. Throws Error if that
// could change the samples of a step, of a microbatch or of the validation, or what replicas of a
// stage compute; if the job has a plan or costs, or an asynchronous schedule; and if the data
// cannot be read.
std::string MergeMinibatches(const TuneRequest& request, const std::vector<WrittenBuffer>& written,
                             Job& job);

// Returns a note that the minibatches stay, and how to merge them, if the request may.
std::string MinibatchesStay(const TuneRequest& request, const Job& job);

}  // namespace pipewright
