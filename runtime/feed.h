// Feed reads a run's data by minibatch and computes the weight of each microbatch's loss.
#pragma once
#include <memory>
#include <vector>

#include "plan/run/run_plan.h"
#include "runtime/data/data.h"
#include "runtime/data/microbatches.h"
#include "runtime/data/signatures.h"

namespace pipewright {

// Returns the number of minibatches that a job trains with, or the largest number.
int64_t MinibatchesOf(const Job& job);

struct Feed : Microbatches {
  std::unique_ptr<Data> data;
  std::unique_ptr<Sampler> sampler;
  int64_t minibatches = 0;  // from the beginning of the data to the end of the run; 0: not known

  // Opens the data on the ranks that read it (ReadingRanks); the first of them tells the others
  // what they need. `where`: the job's key, for messages. `job` and `run` must outlive this.
  // Collective; throws the same Error on every rank.
  void Open(const Job& job, const DataJob& data, const RunPlan& run, const std::string& where,
            Transport& transport);
  std::vector<TensorSpec> Specs(int64_t minibatch, int microbatch) override;
  std::vector<std::vector<TensorSpec>> SmallerSpecs() override;
  at::Tensor Input(int i, int64_t minibatch, int microbatch) override;
  TensorSpec Target(int loss, int64_t minibatch, int microbatch) override;
  std::string TargetName(int loss) override;
  // Continues at a position in the data, on every rank.
  void StartAt(int64_t minibatch, const DataPosition& position);
  // Must be called before the transport is destroyed.
  void Finish();

  // A step's loss is the mean over all targets that are not ignored, a microbatch's the mean over
  // its own. Returns the weight with which the mean of the microbatches' losses is that of the
  // step: 1 if all have the same number of targets. If numbers may differ, reads the targets of all
  // minibatches of the step. For a loss that the model computes, counts samples.
  double LossWeight(int loss, int64_t minibatch, int microbatch) override;
  int64_t Samples(int64_t minibatch, int microbatch) override;
  std::string NotFinite(int64_t minibatch, int microbatch) override;
  std::vector<Found> Reads(bool whole) override;

 private:
  const Job* job_ = nullptr;
  const DataJob* source_ = nullptr;
  bool reads_ = false;  // this rank
  const Manifest* manifest_ = nullptr;
  std::unique_ptr<SharedLengths> lengths_;    // null if this rank neither sends nor receives them
  int64_t begun_ = -1;                        // minibatch whose lengths are known
  int64_t first_ = -1;                        // minibatch of the step whose weights are known
  std::vector<std::vector<double>> weights_;  // by loss
};

}  // namespace pipewright
