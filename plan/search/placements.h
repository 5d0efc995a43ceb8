// Chooses the rank of each stage if zb-auto may.
#pragma once
#include <vector>

#include "plan/schedules/order_problem.h"
#include "plan/schedules/schedule.h"
#include "plan/simulate/costs.h"

namespace pipewright {

// Returns at most `count` maps of stages to ranks that are worth a search, the best first: the V,
// the loop, runs of adjacent stages (for many stages per rank and uneven costs), stages spread by
// their work, and the best of these after swaps and moves of stages, judged by a few quick orders.
// Every rank has a stage, no stage has replicas. Deterministic; times about `effort` actions.
std::vector<StagePlacement> CandidateMaps(const Costs& costs, int ranks, int stages,
                                          int microbatches, double memory, bool forward_only,
                                          long effort, size_t count);

// Returns the least span of a few quick orders, negative if none of them fits. Subtracts their cost
// from `effort`.
double QuickSpan(const OrderProblem& problem, long& effort);

// Returns a lower bound on the span for all such maps. Work that the rank of stage 0 does not do,
// another rank must do; and that rank idles from its first F until its first possible I, except for
// the forwards that its memory holds.
double AnyMapBound(const Costs& costs, int ranks, int stages, int microbatches, double memory,
                   bool forward_only);

}  // namespace pipewright
