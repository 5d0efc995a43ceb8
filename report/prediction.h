// Predicts a step of a package's run from its profile.
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
  std::vector<std::string> notes;  // sentences: what the prediction leaves out
};

// Throws Error if package, conf and job do not fit, or if there is no profile.
Prediction PredictRun(const PackageView& view, const Job& job);

}  // namespace pipewright
