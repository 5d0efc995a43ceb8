// A job's samples as tensors, in an order that depends on the seed and the step only: every rank
// that needs an input or a target reads it for itself, and all read the same. The others know what
// one of these tells them (runtime/signatures.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plan/data/open.h"
#include "plan/job.h"
#include "plan/manifest.h"
#include "plan/run_checkpoint.h"
#include "runtime/shapes.h"

namespace pipewright {

// A source whose columns are given to the inputs of a model.
class Data {
 public:
  // Throws Error where columns and inputs do not fit each other. `where`: the job's key, for
  // messages.
  Data(std::shared_ptr<DataSource> source, const DataJob& job, const Manifest& manifest,
       const std::string& where);

  const DataSource& source() const { return *source_; }
  // "job.json: data.target \"y\" (data.safetensors)", for messages.
  const std::string& TargetName(int loss) const { return target_names_[static_cast<size_t>(loss)]; }
  int64_t samples() const { return source_->samples(); }
  int64_t tokens_per_sample() const { return source_->tokens_per_sample(); }
  // One microbatch, its samples stacked along the first dimension. `input`: index into
  // Manifest::inputs, or -1 - k for the target of loss k. Where samples have lengths, what begins
  // with a dimension as long as the longest possible is cut to `length`.
  at::Tensor Rows(int input, const int64_t* rows, int64_t count, int64_t length = -1) const;
  bool has_lengths() const { return length_.index >= 0; }
  // The longest of these samples; -1: the source knows no lengths.
  int64_t Longest(const int64_t* rows, int64_t count) const;
  // Sizes and type of what Rows gives.
  TensorSpec Spec(int input, int64_t count, int64_t length) const;

 private:
  struct Column {
    int index = -1;  // in the source; -1: there is none
    at::ScalarType type = at::kFloat, wanted = at::kFloat;
    std::vector<int64_t> shape;
  };
  Column Find(const std::string& name, const std::string& where) const;

  std::string where_;  // the job's key, for messages
  std::shared_ptr<DataSource> source_;
  std::vector<DataColumn> known_;
  std::vector<Column> columns_;  // by input
  std::vector<Column> targets_;  // by loss
  std::vector<std::string> target_names_;
  Column length_;
  const Column& ColumnOf(int input) const {
    return input < 0 ? targets_[static_cast<size_t>(-1 - input)]
                     : columns_[static_cast<size_t>(input)];
  }
  bool Cut(const Column& column) const;
};

// Opens the data of `job`. Throws Error for files, names, types and sizes that do not fit.
std::unique_ptr<Data> OpenData(const DataJob& job, const Manifest& manifest,
                               const std::string& where);

// Microbatches of a job by minibatch. An epoch has samples / minibatch of them, rounded down, and
// with Job::partial one more of what is left, if that is a sample for each microbatch. The samples
// of a minibatch are spread over its microbatches, the first of which have one more where they
// cannot all have as many.
class Sampler {
 public:
  // Throws Error when the data has fewer samples than the smallest minibatch.
  Sampler(const Job& job, bool shuffle, const Data& data);
  // `minibatch` starts at `position`, and so on from there; without, 0 at the very beginning.
  void StartAt(int64_t minibatch, const DataPosition& position);
  // Where `minibatch` starts: not before that of StartAt.
  DataPosition Position(int64_t minibatch) const;
  int64_t per_epoch() const { return per_epoch_; }
  // `input` as in Data::Rows; minibatch and microbatch from 0.
  at::Tensor Microbatch(int input, int64_t minibatch, int microbatch);
  TensorSpec Spec(int input, int64_t minibatch, int microbatch);
  // The longest sample of each microbatch; -1: the data knows no lengths.
  std::vector<int64_t> Lengths(int64_t minibatch);
  // What Spec goes by for this minibatch, instead of reading them.
  void SetLengths(int64_t minibatch, std::vector<int64_t> lengths);
  // Samples of a minibatch, of one of its microbatches.
  int64_t Samples(int64_t minibatch) const;
  int64_t Samples(int64_t minibatch, int microbatch) const;

 private:
  // Where the microbatch's samples are, and how many.
  std::pair<const int64_t*, int64_t> Place(int64_t minibatch, int microbatch);
  int64_t LengthOf(int64_t minibatch, int microbatch);
  int64_t Minibatches(int64_t samples) const;  // of so many, the rest of an epoch
  const Job& job_;
  const bool shuffle_;
  const Data& data_;
  int64_t samples_;  // of a minibatch
  int64_t per_epoch_;
  int64_t first_ = 0;
  DataPosition start_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
  int64_t told_minibatch_ = -1;  // -1: none
  std::vector<int64_t> told_lengths_;
};

}  // namespace pipewright
