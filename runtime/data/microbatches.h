// Provides the microbatches of a session and takes their outputs.
#pragma once
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "runtime/exec/same_files.h"
#include "runtime/trial/shapes.h"

namespace pipewright {

// Minibatches, microbatches, inputs and losses are counted from 0.
class Microbatches {
 public:
  virtual ~Microbatches() = default;

  // Returns the sizes of the model's inputs, the same on every rank. Called on all ranks for the
  // same minibatches in the same order: first for the very first microbatch, then as each minibatch
  // begins.
  virtual std::vector<TensorSpec> Specs(int64_t minibatch, int microbatch) = 0;
  // Returns the same for microbatches of the run that have fewer samples than the very first one.
  // Exchanges nothing, so a rank that does not know the sizes returns none.
  virtual std::vector<std::vector<TensorSpec>> SmallerSpecs() { return {}; }
  // Returns input `i` of the model, or for -1 - k the target of loss k. Called only on the ranks
  // that use it.
  virtual at::Tensor Input(int i, int64_t minibatch, int microbatch) = 0;

  // Returns the sizes of a loss's target. If they are not `known`, the target is checked only when
  // it is there.
  virtual TensorSpec Target(int /*loss*/, int64_t /*minibatch*/, int /*microbatch*/) {
    return {at::kFloat, {}, false};
  }
  // Returns the name of the target, for messages.
  virtual std::string TargetName(int /*loss*/) { return "target"; }
  // Returns how many samples a microbatch has, by which losses that the model computes are
  // weighted.
  virtual int64_t Samples(int64_t /*minibatch*/, int /*microbatch*/) { return 1; }
  // Returns the weight of a microbatch's loss that makes a step's loss the mean over all targets:
  // 1 if all microbatches count the same.
  virtual double LossWeight(int /*loss*/, int64_t /*minibatch*/, int /*microbatch*/) { return 1; }

  // Names the first sample of a microbatch that holds NaN or infinity, for messages; "" if none
  // does, or if this rank does not read them.
  virtual std::string NotFinite(int64_t /*minibatch*/, int /*microbatch*/) { return ""; }
  // Returns what this rank reads, which must be the same on all ranks that read it. `whole`:
  // compares whole files.
  virtual std::vector<Found> Reads(bool /*whole*/) { return {}; }

  // Takes an output of the model as soon as it is computed: a tensor,
  // perhaps on a device, or a number.
  virtual void Output(int /*output*/, int /*microbatch*/, const c10::IValue& /*value*/) {}
  // Called in plans whose steps overlap when this rank's stage has stepped, for the `steps`-th time
  // in this run of the plan.
  virtual void Stepped(int64_t /*steps*/) {}
};

}  // namespace pipewright
