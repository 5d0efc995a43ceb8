// Where the microbatches of a session come from, and where their outputs go.
#pragma once
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "runtime/exec/same_files.h"
#include "runtime/module/shapes.h"

namespace pipewright {

// Minibatches, microbatches, inputs and losses are counted from 0.
class Microbatches {
 public:
  virtual ~Microbatches() = default;

  // Sizes of the model's inputs: the same on every rank. All ranks ask, for the same minibatches in
  // the same order: first for the very first microbatch, then as each minibatch begins.
  virtual std::vector<TensorSpec> Specs(int64_t minibatch, int microbatch) = 0;
  // Input `i` of the model, or for -1 - k the target of loss k. Only the ranks that use it ask.
  virtual at::Tensor Input(int i, int64_t minibatch, int microbatch) = 0;

  // Sizes of a loss's target. One that is not `known` is checked only when it is there.
  virtual TensorSpec Target(int /*loss*/, int64_t /*minibatch*/, int /*microbatch*/) {
    return {at::kFloat, {}, false};
  }
  // The name of the target in messages.
  virtual std::string TargetName(int /*loss*/) { return "target"; }
  // The weight of a microbatch's loss, so that a step's is the mean over all that it averages:
  // 1 where all microbatches count the same.
  virtual double LossWeight(int /*loss*/, int64_t /*minibatch*/, int /*microbatch*/) { return 1; }

  // Names the first sample of a microbatch that holds nan or inf, for messages; "" where none does,
  // or this rank does not read them.
  virtual std::string NotFinite(int64_t /*minibatch*/, int /*microbatch*/) { return ""; }
  // What this rank reads, which must be the same on all ranks that read it; `whole`: compared as a
  // whole.
  virtual std::vector<Found> Reads(bool /*whole*/) { return {}; }

  // Takes an output of the model as soon as it is there: a tensor, or a number.
  virtual void Output(int /*output*/, int /*microbatch*/, const c10::IValue& /*value*/) {}
  // Where steps overlap: the stage of this rank has stepped, for the `steps`-th time since the
  // first step of those in a row.
  virtual void Stepped(int64_t /*steps*/) {}
};

}  // namespace pipewright
