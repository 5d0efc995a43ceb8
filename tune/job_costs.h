// What a job adds to its modules: the loss and the optimizer's step.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/job.h"
#include "plan/tune/problem.h"
#include "tune/budget.h"
#include "tune/request.h"

namespace pipewright {

// Measures steps of the job on one rank, for each number of threads, and sets the costs of loss and
// optimizer in the profiles of `problem`: what a microbatch takes longer than its modules, the
// memory of its loss, and the time of a step. Measures the job's own microbatches and the largest,
// since a loss takes time for each microbatch as well as for each sample. Uses what an earlier tune
// measured. Notes it if the job does not run on one rank or the budget is over: both then count as
// free.
void MeasureJobCosts(const TuneRequest& request, const Job& job, const TuneBudget& budget,
                     TuneProblem& problem, std::vector<std::string>& notes);

// Sets the costs in the profiles with `threads` threads from the figures of `bench --json`, all
// modules in one stage, by the samples of a microbatch.
void SetJobCosts(const std::map<int64_t, Json>& figures, int threads, TuneProblem& problem);

}  // namespace pipewright
