// Provides a job's samples as tensors, in an order that depends only on the seed and the step.
// Every rank that needs an input or a target reads it itself, and all read the same. One of these
// ranks tells the others the sizes (runtime/data/signatures.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/data/open.h"
#include "formats/job.h"
#include "formats/manifest.h"
#include "formats/weights/run_checkpoint.h"
#include "runtime/trial/shapes.h"

namespace pipewright {

// A data source with its columns assigned to the inputs of a model.
class Data {
 public:
  // Throws Error if columns and inputs do not match. `where` is the job's key, for messages.
  Data(std::shared_ptr<DataSource> source, const DataJob& job, const Manifest& manifest,
       const std::string& where);

  const DataSource& source() const { return *source_; }
  // Returns text such as "job.json: data.target \"y\" (data.safetensors)", for messages.
  const std::string& TargetName(int loss) const { return target_names_[static_cast<size_t>(loss)]; }
  const std::string& InputName(int input) const { return input_names_[static_cast<size_t>(input)]; }
  int64_t samples() const { return source_->samples(); }
  int64_t tokens_per_sample() const { return source_->tokens_per_sample(); }
  // Returns one microbatch, its samples stacked along the first dimension. `input` is an index into
  // Manifest::inputs, or -1 - k for the target of loss k. If samples have lengths, tensors whose
  // first dimension is the maximum length are cut to `length`.
  at::Tensor Rows(int input, const int64_t* rows, int64_t count, int64_t length = -1) const;
  bool has_lengths() const { return length_.index >= 0; }
  // Returns the number of bytes that the source's Read writes for a column.
  size_t RowBytes(int column) const;
  // Returns the longest length of these samples, or -1 if the source has no lengths.
  int64_t Longest(const int64_t* rows, int64_t count) const;
  // Returns the sizes and type of the result of Rows.
  TensorSpec Spec(int input, int64_t count, int64_t length) const;

 private:
  struct Column {
    int index = -1;  // in the source; -1: no column
    at::ScalarType type = at::kFloat, wanted = at::kFloat;
    std::vector<int64_t> shape;
  };
  Column Find(const std::string& name, const std::string& where) const;

  std::string where_;  // the job's key, for messages
  std::shared_ptr<DataSource> source_;
  std::vector<DataColumn> known_;
  std::vector<Column> columns_;  // by input
  std::vector<Column> targets_;  // by loss
  std::vector<std::string> target_names_, input_names_;
  Column length_;
  const Column& ColumnOf(int input) const {
    return input < 0 ? targets_[static_cast<size_t>(-1 - input)]
                     : columns_[static_cast<size_t>(input)];
  }
  bool Cut(const Column& column) const;
};

// Opens the data of `job`. Throws Error for files, names, types and sizes that do not match the
// model.
std::unique_ptr<Data> OpenData(const DataJob& job, const Manifest& manifest,
                               const std::string& where);

// Throws Error if there are fewer samples than the smallest minibatch takes.
void CheckEnough(const Job& job, int64_t samples);
// Does the same if the files of `data` can be opened here. Fails early, since planning very many
// microbatches takes long.
void CheckEnoughFiles(const Job& job, const DataJob& data);

// Cuts the samples of a job into minibatches and microbatches. An epoch has samples / minibatch
// minibatches, rounded down; with Job::partial the remainder forms one more, if it has at least one
// sample per microbatch. If the samples of a minibatch do not divide evenly, its first microbatches
// have one more.
class Sampler {
 public:
  // Throws Error if the data has fewer samples than the smallest minibatch.
  Sampler(const Job& job, bool shuffle, const Data& data);
  // Minibatch `minibatch` starts at `position`, and later ones follow. Without this call, minibatch
  // 0 starts at the beginning of the data.
  void StartAt(int64_t minibatch, const DataPosition& position);
  // Returns where `minibatch` starts, which must not precede that of StartAt.
  DataPosition Position(int64_t minibatch) const;
  int64_t per_epoch() const { return per_epoch_; }
  // `input` is as in Data::Rows; minibatch and microbatch count from 0.
  at::Tensor Microbatch(int input, int64_t minibatch, int microbatch);
  TensorSpec Spec(int input, int64_t minibatch, int microbatch);
  // Returns the longest sample of each microbatch, or -1 if the data has no lengths.
  std::vector<int64_t> Lengths(int64_t minibatch);
  // Sets the lengths that Spec uses for this minibatch, so that they need not be read.
  void SetLengths(int64_t minibatch, std::vector<int64_t> lengths);
  // Returns the number of samples of a minibatch, or of one of its microbatches.
  int64_t Samples(int64_t minibatch) const;
  int64_t Samples(int64_t minibatch, int microbatch) const;
  // Returns the index in the data of a row of the microbatch.
  int64_t Sample(int64_t minibatch, int microbatch, int64_t row) {
    return Place(minibatch, microbatch).first[row];
  }

 private:
  // Returns the row numbers of the microbatch, and how many there are.
  std::pair<const int64_t*, int64_t> Place(int64_t minibatch, int microbatch);
  int64_t LengthOf(int64_t minibatch, int microbatch);
  // Returns the number of minibatches in this many samples at the end of an epoch.
  int64_t Minibatches(int64_t samples) const;
  const Job& job_;
  const bool shuffle_;
  const Data& data_;
  int64_t samples_;  // per minibatch
  int64_t per_epoch_;
  int64_t first_ = 0;
  DataPosition start_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
  int64_t told_minibatch_ = -1;  // -1: none
  std::vector<int64_t> told_lengths_;
};

}  // namespace pipewright
