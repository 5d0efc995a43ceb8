// Inference: the order of its forwards, the memory that they need, and the weights on disk where
// that is not there.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/tune/predict.h"

namespace pipewright {

// Returns the order of the forwards; with weights on disk, all microbatches of a stage in a row.
Plan ForwardOrder(const Conf& conf, int ranks, int microbatches);

// Inserts the loads of weights on disk into a lowered plan, as a run does.
void InsertForwardLoads(const Conf& conf, const Costs& costs, Plan& plan);

// Adds to the memory of each rank what the costs of stages do not have: slots as large as the
// largest module on disk, values that wait for a later stage of the same rank, and the outputs of
// the model, which rank 0 gathers.
void AddForwardMemory(const Prospect& prospect, const Plan& plan, std::vector<double>& peak_bytes);

// Returns which modules of a rank stay in memory, for their bytes of weights and the memory for all
// of these, so that the fewest bytes are read from disk: the others need two slots as large as the
// largest of them. Modules without weights always stay. If nothing fits, only those do.
std::vector<bool> ResidentModules(const std::vector<int64_t>& bytes, int64_t memory);

// Returns `conf`, whose stages are each on one rank, with modules on disk where a rank is over its
// limit otherwise, so that the fewest bytes are read. If that is not enough, all weights of the
// rank are on disk.
Conf WithWeightsOnDisk(const TuneProblem& problem, const TuneProfile& profile, const Conf& conf,
                       int microbatches);

}  // namespace pipewright
