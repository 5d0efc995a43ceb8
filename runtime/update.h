// The optimizer's part of a rank: gradients in, new weights out.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "plan/job.h"
#include "runtime/optimizer.h"

namespace pipewright {

class Updater {
 public:
  // Gradients arrive as sums over `microbatches`. keep_gradients: those of the last step can be
  // asked for.
  Updater(const OptimizerJob& job, int microbatches, bool keep_gradients);

  // A module of this rank; `weights` in the order of ModuleInfo::held.
  void Hold(int module, const std::vector<at::Tensor>& weights);

  // One optimizer step of a module. `gradients` in the order of its weights, undefined where no
  // loss reaches; all are undefined afterwards.
  void Step(int module, std::vector<at::Tensor>& gradients);

  // Of a module that is held. What a state has not yet got is undefined.
  OptimizerState& State(int module, size_t weight);
  at::Tensor LastGradient(int module, size_t weight) const;

 private:
  struct Parameter {
    at::Tensor weight;  // shares the memory of the module's, without autograd
    OptimizerState state;
    at::Tensor last_gradient;
  };
  OptimizerJob job_;
  int microbatches_;
  bool keep_gradients_;
  std::map<int, std::vector<Parameter>> modules_;
};

}  // namespace pipewright
