// What of a job may change without changing its results by more than rounding, or at all.
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/job.h"
#include "formats/written_buffer.h"
#include "plan/tune/search.h"
#include "tune/job/request.h"

namespace pipewright {

// The most microbatches of a candidate, unless the job has more: orders of so many are still made
// and simulated fast.
inline constexpr int64_t kMostMicrobatches = 4096;

// Returns the samples of a minibatch.
int64_t SamplesOf(const Job& job);

// Returns a buffer that forward writes, and of which each replica of a stage keeps its own; none if
// replicas merge all buffers.
std::optional<WrittenBuffer> BufferOfReplicas(const std::vector<WrittenBuffer>& written,
                                              const Job& job);

// Returns the sizes of microbatches to choose from: the job's, and those of SizesOfRows. Adds a
// note if only the job's is allowed.
std::set<int64_t> MicrobatchSizes(const TuneRequest& request, const Manifest& manifest,
                                  const std::vector<WrittenBuffer>& written, const Job& job,
                                  std::vector<std::string>& notes);

// Returns a note that the size of microbatches stays, and why.
std::string MicrobatchStays(const Job& job, const std::string& why);

// Returns the least and the largest number of samples that an input allows, or all inputs.
std::pair<int64_t, int64_t> SamplesAllowed(const Manifest& manifest, const ValueInfo& input);
std::pair<int64_t, int64_t> SamplesAllowed(const Manifest& manifest);

// Limits the candidates of `problem` to those with the job's results. Notes what is left out.
// Throws Error if --exact allows none.
void LimitCandidates(const TuneRequest& request, const std::vector<WrittenBuffer>& written,
                     const Job& job, TuneProblem& problem, std::vector<std::string>& notes);

// Throws Error if the environment overrides how modules compute.
void RefuseBodyOverride();

}  // namespace pipewright
