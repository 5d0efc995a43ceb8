// Checks that a plan can run to its end and computes what it should.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace pipewright {

// The peaks of what a rank holds at once while a plan runs.
struct RankPeaks {
  int activations = 0;       // microbatches of a stage between F and B (or I)
  int kept_for_weights = 0;  // between I and W
  int buffers = 0;           // receive buffers posted and not yet used up
  int64_t buffer_bytes = 0;  // their size, by the bytes of their edges
  int loaded = 0;            // offloaded stages between LOAD and EVICT
};

struct PlanReport {
  std::vector<RankPeaks> ranks;
};

// Accepts a plan, or throws Error("rank R, action N, 2SEND_F5>4: rule \"NAME\": ..."). The rules:
//   range       stages, microbatches and peers are those of the plan
//   once        every stage's F, and B or I and W, once per microbatch; each transfer once
//   rank        on the rank that the placement assigns
//   order       F before B or I, I before W; a SEND after the compute that makes its data, a RECV
//               before the compute that uses it; REDUCE_GRAD and STEP after the last gradient
//   transfer    a SEND and a RECV for each edge, microbatch and direction between different ranks,
//               and no others
//   channel     a rank posts the receives from another rank in the order of that rank's sends
//   slot        no RECV takes a slot that holds data not yet used
//   step        each stage has one STEP per step on each of its ranks, after its REDUCE_GRAD
//   version     a given weight version exists when its F runs, and the B, I and W have the same;
//               without one, an F of step k runs after k steps of its stage
//   load        computes and STEP of a stage that is ever loaded are between its LOAD and EVICT
//   deadlock    every rank reaches its end even if each SEND blocks until its RECV is reached and
//               each gradient exchange until all its ranks are there
PlanReport Validate(const Plan& plan, const StageGraph& graph);

// Uses the graph that the plan's own text gives (GraphOf).
PlanReport Validate(const Plan& plan);

// Checks a schedule, which has compute actions only: range, once, rank, order, version, step,
// deadlock.
// Its steps end where Lower ends them.
PlanReport ValidateSchedule(const Plan& schedule, const StageGraph& graph);

}  // namespace pipewright
