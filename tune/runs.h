// Runs profiles and benchmarks of candidates, each in its own processes, so that one that
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

}  // namespace pipewright
