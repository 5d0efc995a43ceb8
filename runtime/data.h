// Samples of a job, in an order that depends on the seed and the step only: every rank that needs
// an input or a target reads it for itself, and all read the same.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "plan/job.h"
#include "plan/manifest.h"
#include "plan/run_checkpoint.h"

namespace pipewright {

// The order of `count` samples in epoch `epoch`: ascending by splitmix64(splitmix64(seed +
// 0x9E3779B97F4A7C15 * (epoch + 1)) xor sample), or 0, 1, 2, ... without shuffle.
std::vector<int64_t> EpochOrder(int64_t count, uint64_t seed, int64_t epoch, bool shuffle);

class Data {
 public:
  virtual ~Data() = default;
  virtual int64_t samples() const = 0;
  virtual int64_t tokens_per_sample() const { return 1; }
  // One microbatch, its samples stacked along the first dimension. `input`: index into
  // Manifest::inputs, or -1 for the target.
  virtual at::Tensor Rows(int input, const int64_t* rows, int64_t count) const = 0;
};

// Opens the data of `job` for the model's inputs. Throws Error for files, names, types and sizes
// that do not fit.
std::unique_ptr<Data> OpenData(const Job& job, const Manifest& manifest);

// Microbatches of a job by step. An epoch has samples / minibatch steps, rounded down.
class Sampler {
 public:
  // Throws Error when the data has fewer samples than one minibatch.
  Sampler(const Job& job, const Data& data);
  // Step `step` starts at `position`, and so on from there; without, step 0 at the very beginning.
  void StartAt(int64_t step, const DataPosition& position);
  // Where `step` starts: not before the step of StartAt.
  DataPosition Position(int64_t step) const;
  // `input` as in Data::Rows; step and microbatch from 0.
  at::Tensor Microbatch(int input, int64_t step, int microbatch);

 private:
  const Job& job_;
  const Data& data_;
  int64_t minibatch_, per_epoch_;
  int64_t first_step_ = 0;
  DataPosition start_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace pipewright
