// Which gradients the ranks sum with each other, and in which messages.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/conf.h"
#include "plan/manifest.h"
#include "runtime/exec/executor.h"

namespace pipewright {

// Elements begin .. begin + count of one weight of a module, the weight flattened.
struct WeightSlice {
  int module = -1;
  size_t weight = 0;  // in ModuleInfo::held
  int64_t begin = 0, count = 0;
};

// What the messages of one group hold.
struct GradientGroup {
  std::vector<std::vector<WeightSlice>> terms;  // of equal sizes: what each term's holders give
  std::vector<int> microbatch;                  // by holder: of which it gives; -1: its rank's sum
};

// Parallel lists: one group each for the executor and for the stages.
struct GradientGroups {
  std::vector<SharedGroup> exchanges;
  std::vector<GradientGroup> contents;
};

// First one group for each trained shared weight; its terms are the modules that hold it, in their
// order. Then, for each stage with replicas, its other weights, in groups of about `bucket_bytes`
// that the replicas take turns to sum. A group never spans modules, so that it can leave as soon as
// its module's last gradient is there.
//
// A replica gives the sum over its own microbatches; replicas are added in the order of the conf.
// `exact`: it gives the gradient of each microbatch apart, and these are added in the order of the
// microbatches, as a stage without replicas adds them.
//
// A step has `minibatches` times `microbatches`; the latter are counted on over the former.
GradientGroups MakeGradientGroups(const Manifest& manifest, const Conf& conf, int microbatches,
                                  int minibatches, bool exact,
                                  int64_t bucket_bytes = int64_t{4} << 20);

}  // namespace pipewright
