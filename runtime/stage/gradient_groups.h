// Determines which gradients the ranks sum with each other, and in which messages.
#pragma once
#include <cstdint>
#include <vector>

#include "formats/conf.h"
#include "formats/manifest.h"
#include "runtime/exec/executor.h"

namespace pipewright {

// Elements begin to begin + count of one weight of a module, flattened.
struct WeightSlice {
  int module = -1;
  size_t weight = 0;  // in ModuleInfo::held
  int64_t begin = 0, count = 0;
};

// The contents of one group's messages.
struct GradientGroup {
  std::vector<std::vector<WeightSlice>> terms;  // slices of each term's holders, of equal sizes
  std::vector<int> microbatch;                  // by holder: its microbatch, or -1: its sum
};

// Parallel lists: one group each for the executor and for the stages.
struct GradientGroups {
  std::vector<SharedGroup> exchanges;
  std::vector<GradientGroup> contents;
};

// Selects how the gradients of a step are added.
struct GradientOptions {
  int microbatches = 1, minibatches = 1;  // a step has this many times that many microbatches
  bool exact = false;  // gradients are added in the order of the microbatches, and early ones wait
  bool wide = false;   // gradients of 16-bit weights are added in 32 bits
  int64_t bucket_bytes = int64_t{4} << 20;
};

// Lists first one group per trained shared weight, whose terms are the modules that hold it, in
// order. Then, for each stage with replicas, its other weights in groups of about `bucket_bytes`,
// which the replicas take turns to sum. A group never spans modules, so it can be sent as soon as
// its module's last gradient is complete.
//
// A replica contributes the sum over its own microbatches; replicas are added in the order of the
// conf. With `exact` it contributes the gradient of each microbatch separately, and these are added
// in the order of the microbatches, as a stage without replicas adds them.
//
// The microbatches of a step are numbered consecutively through its minibatches.
GradientGroups MakeGradientGroups(const Manifest& manifest, const Conf& conf,
                                  const GradientOptions& options);

}  // namespace pipewright
