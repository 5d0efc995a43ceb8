// Measures what steps of a job take beyond the profile of its modules: the loss, the optimizer's
// step, and how much longer the modules take in steps than by themselves.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/job.h"
#include "plan/tune/problem.h"
#include "tune/job/request.h"
#include "tune/measure/budget.h"

namespace pipewright {

// A number of ranks, and of the threads of each, that profiles have.
struct TuneShape {
  int threads = 1, ranks = 1;
  auto operator<=>(const TuneShape&) const = default;
};

// Returns the sizes of microbatches to measure for a shape: the job's own, the largest of which
// each rank can have a microbatch, and the largest, unless the two are enough to extrapolate to it.
std::vector<int64_t> SizesOfCosts(const Job& job, const TuneProblem& problem,
                                  const TuneShape& shape);

// Measures steps of the job with all modules in one stage, for each shape, and sets the costs of
// the job in the profiles of `problem`: time and memory of the loss, and the time of the
// optimizer's step. The ranks run replicas of the stage if a step's samples and half of the host's
// memory are enough for that: then all cores are as busy as in a run, and the times of the
// profile's modules become those that they take in these steps. Otherwise, one rank runs it.
// Measures the sizes of SizesOfCosts. Uses what an earlier tune measured. Where the job does not
// run as one stage, or the budget is over, profiles get the costs of others, with as many threads
// if there are any, and a note says so: without any, they would seem to be faster than the others.
// Only if there are none, the costs of the job are 0.
void MeasureJobCosts(const TuneRequest& request, const Job& job, const TuneBudget& budget,
                     TuneProblem& problem, std::vector<std::string>& notes);

// Sets the costs of the job in those of the problem's profiles that have this shape. `figures` are
// those of `bench --json`, all modules in one stage, by the samples of a microbatch, and `measured`
// are the profiles before. `other`: the shape that ran, if it is not `shape`; its times are scaled
// by how much longer modules by themselves take in `shape`. Returns true if the figures tell how
// much longer modules take in steps.
bool SetJobCosts(const std::map<int64_t, Json>& figures, const TuneShape& shape,
                 const std::vector<TuneProfile>& measured, TuneProblem& problem,
                 const std::optional<TuneShape>& other = std::nullopt);

}  // namespace pipewright
