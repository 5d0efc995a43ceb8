// Feed reads a run's data by minibatch and computes the weight of each microbatch's loss.
#pragma once
#include <memory>
#include <vector>

#include "runtime/data.h"
#include "runtime/session.h"
#include "runtime/shapes.h"
#include "runtime/signatures.h"

namespace pipewright {

struct Feed {
  std::unique_ptr<Data> data;
  std::unique_ptr<Sampler> sampler;

  // Opens the data on the ranks that read it (ReadingRanks); the first of them tells the others
  // what they need. `where` is the job's key, for messages. Collective; throws the same Error on
  // every rank.
  void Open(const Job& job, const DataJob& data, const RunPlan& run, const std::string& where,
            Transport& transport);
  // Returns the specs of the model's inputs for one microbatch. Must be called on all ranks for the
  // same minibatches in the same order.
  std::vector<TensorSpec> Specs(const Manifest& manifest, int64_t minibatch, int microbatch);
  // Returns what a microbatch of the first minibatch provides. Must be called like Specs.
  Fed First(const Job& job, const Manifest& manifest);
  // Must be called before the transport is destroyed.
  void Finish();

  // A step's loss is the mean over all targets that count; a microbatch's loss is the mean over its
  // own. Returns the weight with which the mean of the weighted microbatch losses becomes the
  // step's loss: 1 if all have equally many targets. Reads the targets of all minibatches of the
  // step if the counts may differ. For a loss that the model computes, samples count.
  double LossWeight(const Job& job, int loss, int64_t minibatch, int microbatch);

 private:
  std::unique_ptr<SharedLengths> lengths_;    // set if this rank receives or sends lengths
  int64_t begun_ = -1;                        // minibatch with known lengths
  int64_t first_ = -1;                        // first minibatch of the step with known weights
  std::vector<std::vector<double>> weights_;  // by loss
};

}  // namespace pipewright
