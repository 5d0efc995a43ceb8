// `pipewright plan --validate`.
#pragma once
#include <string>

#include "plan/plan.h"

namespace pipewright {

struct ValidateRequest {
  std::string file, costs;  // costs: "" for none
  int steps = 0;            // of a loop; 0: as it says
  double memory = -1;       // bytes a rank may hold; -1: any number
  bool compute_only = false;
};

// Prints what each rank holds at most, in bytes too where there are costs. Throws Error with the
// first rule broken.
void ValidatePlan(const ValidateRequest& request);

// "2 ranks, 4 stages, 8 microbatches".
std::string Numbers(const Plan& plan);
void PrintNotes(const Plan& plan);

}  // namespace pipewright
