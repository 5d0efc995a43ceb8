// What a run reads: the job's data by minibatch, and how much each microbatch's loss counts.
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

  // On the ranks that read (ReadingRanks); the first of them tells the others what they need.
  // `where`: the job's key, for messages. Collective; throws the same Error on every rank.
  void Open(const Job& job, const DataJob& data, const RunPlan& run, const std::string& where,
            Transport& transport);
  // Of the model's inputs, for one microbatch. On all ranks for the same minibatches in the same
  // order.
  std::vector<TensorSpec> Specs(const Manifest& manifest, int64_t minibatch, int microbatch);
  // What a microbatch of the first minibatch brings. As Specs.
  Fed First(const Job& job, const Manifest& manifest);
  // Before the transport ends.
  void Finish();

  // A step's loss is the mean over all targets that count. A microbatch's loss is the mean over its
  // own; its weight is what makes the mean of the weighted losses that mean: 1 where all have as
  // many. Reads the targets of all minibatches of the step where they may differ. Of a loss that
  // the model computes, samples count.
  double LossWeight(const Job& job, int loss, int64_t minibatch, int microbatch);

 private:
  std::unique_ptr<SharedLengths> lengths_;    // where this rank is told, or tells
  int64_t begun_ = -1;                        // minibatch whose lengths are known
  int64_t first_ = -1;                        // minibatch of the step whose weights are known
  std::vector<std::vector<double>> weights_;  // by loss
};

}  // namespace pipewright
