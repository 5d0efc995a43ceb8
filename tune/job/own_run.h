// The run of a job as it is, before anything is tuned.
#pragma once
#include <string>

#include "formats/job.h"
#include "formats/manifest.h"
#include "plan/run/run_plan.h"
#include "tune/job/request.h"

namespace pipewright {

// Returns the run: with the package's conf or, if that needs more ranks than there are or does not
// fit the schedule, with the modules grouped in order for the schedule's stages. Throws Error if
// the job cannot run on so many ranks. `why` gets a note if the package's conf is not used.
RunPlan OwnRun(const TuneRequest& request, const Job& job, const Manifest& manifest,
               std::string* why = nullptr);

}  // namespace pipewright
