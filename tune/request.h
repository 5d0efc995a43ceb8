// What the user asks of `pipewright tune`.
#pragma once
#include <string>

#include "plan/simulate/lower_bound.h"

namespace pipewright {

struct TuneRequest {
  std::string package, job, output, memory;
  int ranks = 0, candidates = 5, rounds = 3, repeat = 5;
  double time_limit = kNoLimit;  // seconds for all measured rounds
  bool exact = false, change_microbatch = false, no_measure = false, in_process = false;
  bool force = false;
  bool quiet = false;  // no progress on standard error
};

}  // namespace pipewright
