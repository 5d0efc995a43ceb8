// Profiles of a package's modules for every number of ranks, threads, and size of microbatches.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "formats/job.h"
#include "plan/tune/problem.h"
#include "tune/job/request.h"
#include "tune/measure/budget.h"
#include "tune/measure/kept.h"

namespace pipewright {

// Prints a line about what is being done, unless the request is quiet.
void Say(const TuneRequest& request, const std::string& text);

// Says that other programs use so many cores, and that a measurement is repeated.
void SayDisturbed(const TuneRequest& request, double others);
// Returns "other programs used up to 0.5 cores while ...: their times may be too long".
std::string DisturbedText(double others, const std::string& meanwhile);

// Returns the numbers of ranks to try: powers of two, all, and as many as there are modules.
std::set<int> RankCounts(const TuneRequest& request, const TuneProblem& problem);

// Returns how many of a host's `cores` each of `ranks` ranks has, at least 1.
int ShareOfCores(const TuneRequest& request, int ranks, int cores);

// Returns the numbers of threads to try for each of `ranks` ranks: the job's if it names one or if
// bits may not change, and otherwise the job's, one for inference, and all cores.
std::set<int> ThreadCounts(const TuneRequest& request, const Job& job, int ranks, int cores);

struct WantedProfiles {
  std::set<int64_t> sizes;  // of microbatches
  int own_ranks = 1;        // of the job as it is
};

// Adds a profile to `problem` for each size, on each number of ranks and threads: measured now,
// kept from an earlier tune, or interpolated. The job's own comes first. Notes what does not run,
// what the budget cut off, how good the interpolation is, and a busy machine. Returns
// true if the least size, which takes the least memory, was measured on all of them. Throws Error
// if the job's own size can be measured on no ranks (for inference, only if there is no other), or
// if nothing was measured.
bool MeasureProfiles(const TuneRequest& request, const Job& job, const WantedProfiles& wanted,
                     const TuneBudget& budget, TuneProblem& problem,
                     std::vector<std::string>& notes);

}  // namespace pipewright
