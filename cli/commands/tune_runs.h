// Runs profiles and benchmarks for `pipewright tune`, each in its own processes, so that one that
// fails or runs out of memory affects nothing else.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "formats/profile/profile.h"

namespace pipewright {

struct TuneRun {
  std::string package, job, conf;
  int ranks = 1;
  bool in_process = false;  // ranks are threads, not processes that mpirun starts
  int steps = 3;
};

// Returns the time of a step in seconds: the median of the measured steps. Throws Error with the
// program's message.
double MeasureStep(const TuneRun& run);

// Measures the modules of a package on `ranks` ranks at once, placed as in `conf`. Throws Error
// with the program's message.
Profile MeasureProfile(const std::string& package, const std::string& conf, int ranks,
                       int64_t microbatch, int threads, int repeat);

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
