// The job file of a candidate.
#pragma once
#include <cstdint>
#include <string>

#include "base/json.h"

namespace pipewright {

// Returns the text of `job`, read from the file `from`, for the path `to`, with another schedule (a
// name, or a plan file in the same folder), minibatches, microbatches, recomputation, threads and
// bodies. Paths, which are relative to the job's folder, name the same files.
struct JobChanges {
  std::string schedule;
  int microbatches = 1;
  int64_t samples = 1;       // of a minibatch
  Json recompute = nullptr;  // as in a job; null: nothing
  int threads = 0;           // per rank; 0: as in the job
  std::string body = "";     // of modules; empty: as in the job
  int accumulate = 1;        // minibatches of a step
};
std::string ChangedJob(Json job, const std::string& from, const std::string& to,
                       const JobChanges& changes);

// Removes what a run to measure does not have: files that it writes, validation, and devices other
// than the CPU.
void KeepOnlySteps(Json& job);

}  // namespace pipewright
