// Stages filled one after the other, as stations of an assembly line are.
#pragma once
#include "plan/partition/units.h"

namespace pipewright {

struct FillOptions {
  double most = kInfinity;  // load of a stage
  int stages = 1;           // at most
  bool from_end = false;    // the last stage is filled first
  // What a unit counts less than its work, as a share of `most`: more of it fills stages with the
  // large units first, which are hard to place later.
  double small = 0;
  size_t kept = 12;  // fillings after each stage
};

// The stage of each unit, on devices of the first class; -1 for those that could not be placed,
// where no way was found that keeps to `options`. After each stage those are kept that have done
// most and whose rest needs the least memory; many of each next stage are tried (after Hoffmann,
// "Assembly line balancing with a precedence matrix", 1963, and Sewell, Jacobson, "A branch, bound,
// and remember algorithm for the simple assembly line balancing problem", 2012). What it took is
// taken from `steps`. Deterministic.
std::vector<int> FilledStages(const PartitionProblem& problem, const UnitGraph& graph,
                              const FillOptions& options, int64_t& steps);

}  // namespace pipewright
