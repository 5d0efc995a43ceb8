// Chooses the rank of each stage, where zb-auto may.
#pragma once
#include <vector>

#include "plan/schedules/order_problem.h"
#include "plan/schedules/schedule.h"
#include "plan/simulate/costs.h"

namespace pipewright {

// Maps of stages to ranks worth a search, the best first, at most `count`: the V, the loop and
// neighbouring stages together (for many stages a rank and uneven costs), stages spread by their
// work, and what swapping and moving stages makes of the best of them, judged by a few quick
// orders. Every rank has a stage, no stage has replicas. Deterministic; times about `effort`
// actions.
std::vector<StagePlacement> CandidateMaps(const Costs& costs, int ranks, int stages,
                                          int microbatches, double memory, bool forward_only,
                                          long effort, size_t count);

// The least span of a few quick orders, less than 0 where none of them fits; takes what they cost
// from `effort`.
double QuickSpan(const OrderProblem& problem, long& effort);

// A span that no order on any such map can beat. With one stage less on a rank another has one
// more, so the rank of stage 0 has its share of the work, and idles from its first F until the
// first I that it can have, save for the forwards that its memory holds.
double AnyMapBound(const Costs& costs, int ranks, int stages, int microbatches, double memory,
                   bool forward_only);

}  // namespace pipewright
