// `pipewright plan --validate`: checks a plan.
#pragma once
#include <string>

#include "plan/plan.h"

namespace pipewright {

struct ValidateRequest {
  std::string file, costs;  // `costs` may be ""
  int steps = 0;            // for a loop; 0: the file's number
  double memory = -1;       // limit per rank in bytes; -1: none
  bool compute_only = false;
};

// Prints the peak of each rank, also in bytes if there are costs. Throws Error for the first
// violated rule.
void ValidatePlan(const ValidateRequest& request);

// Returns text such as "2 ranks, 4 stages, 8 microbatches".
std::string Numbers(const Plan& plan);
void PrintNotes(const Plan& plan);

}  // namespace pipewright
