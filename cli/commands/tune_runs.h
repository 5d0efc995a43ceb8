// Runs profiles and benchmarks for `pipewright tune`, each in processes of its own, so that one that
// fails or runs out of memory takes nothing else with it.
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

// The time of a step in seconds: the median of the steps that were measured. Throws Error with what
// the program said.
double MeasureStep(const TuneRun& run);

// Measures the modules of a package on `ranks` ranks at once, as `conf` places them. Throws Error
// with what the program said.
Profile MeasureProfile(const std::string& package, const std::string& conf, int ranks,
                       int64_t microbatch, int threads, int repeat);

// The job file `from` for the file `to`: other schedule, microbatches and recomputation, the same
// samples in a step. Paths of data, which are relative to the job's folder, name the same files.
struct JobChanges {
  std::string schedule;
  int microbatches = 1;
  int64_t samples = 1;
  bool recompute = false;
};
std::string ChangedJob(const std::string& from, const std::string& to, const JobChanges& changes);

}  // namespace pipewright
