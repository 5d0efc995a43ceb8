// The job file of a candidate.
#pragma once
#include <cstdint>
#include <string>

namespace pipewright {

// Returns the text of the job file `from` for the path `to`, with another schedule, microbatches
// and recomputation, but the same samples in a step. Paths of data, which are relative to the job's
// folder, name the same files.
struct JobChanges {
  std::string schedule;
  int microbatches = 1;
  int64_t samples = 1;
  bool recompute = false;
};
std::string ChangedJob(const std::string& from, const std::string& to, const JobChanges& changes);

}  // namespace pipewright
