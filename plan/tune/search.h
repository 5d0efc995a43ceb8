// Searches for the best way to run a package: the number of ranks, threads and microbatches, the
// cut into stages, how many of them a rank has (up to 8), the schedule, and the stages that
// recompute.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "plan/tune/problem.h"

namespace pipewright {

inline constexpr double kClearlySlower = 2;  // predictions of one kind err by up to 1.75 times

// The number of ranks, and whether stages have replicas: ranks that share memory, and replicas that
// add gradients, may take longer than predicted.
using TuneKind = std::pair<int, bool>;

TuneKind TuneKindOf(const TuneCandidate& candidate);

struct TuneResult {
  std::vector<TuneCandidate> best;   // within the memory, the shortest step first
  std::vector<TuneCandidate> large;  // over the limit, smallest peak first; only if `best` is empty
  // Within the memory, the best of each kind, as far as it is not clearly slower.
  std::map<TuneKind, TuneCandidate> by_kind;
  int simulated = 0;
  int pruned = 0;    // not simulated: their bound is above the last of `best`
  int over = 0;      // over the memory limit
  int unfit = 0;     // the schedule is not defined for these numbers, needs more stages than there
                     // are modules, or has another order
  int searched = 0;  // orders that zb-auto searched
  int too_long = 0;  // orders that zb-auto did not search: they have too many actions
};

// Returns the `keep` best candidates. Simulates them in the order of a bound that needs no cut, and
// cuts and simulates none whose bound is above the last of the best so far, and above the best of
// their kind or kClearlySlower times the best. Then zb-auto searches better orders for the best of
// them. All limits are in work, so the same problem gives the same result. Looks only for
// steps shorter than `shorter_than` seconds.
TuneResult SearchTune(const TuneProblem& problem, size_t keep, double shorter_than = kNoLimit);

// Returns true if that search finds a candidate. Ends with the first, so it is faster.
bool AnyFits(const TuneProblem& problem);

}  // namespace pipewright
