// Predicts a step of a package's run by what its profile measured.
#pragma once
#include <string>
#include <vector>

#include "formats/job.h"
#include "plan/plan.h"
#include "plan/simulate/costs.h"
#include "report/view.h"

namespace pipewright {

struct Prediction {
  Plan plan;
  Costs costs;                     // microseconds and bytes
  std::vector<std::string> notes;  // sentences: what it does not know
};

// Throws Error where package, conf and job do not fit, and without a profile.
Prediction PredictRun(const PackageView& view, const Job& job);

}  // namespace pipewright
