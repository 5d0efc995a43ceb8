// Profiles of a package's modules for every number of ranks and size of microbatches.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "formats/job.h"
#include "plan/tune/search.h"
#include "tune/request.h"

namespace pipewright {

// Prints a line about what is being done, unless the request is quiet.
void Say(const TuneRequest& request, const std::string& text);

// Adds a profile to `problem` for each of `sizes`, on each number of ranks. Notes sizes that the
// model refuses. Throws Error if it refuses the job's own.
void MeasureProfiles(const TuneRequest& request, const Job& job, const std::set<int64_t>& sizes,
                     TuneProblem& problem, std::vector<std::string>& notes);

}  // namespace pipewright
