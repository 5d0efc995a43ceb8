#include "runtime/data/data.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/call_text.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

const char* KeyOf(const DataJob& job) {
  return !job.tokens.empty()    ? ".tokens"
         : !job.tensors.empty() ? ".tensors"
         : !job.arrays.empty()  ? ".arrays"
                                : ".plugin";
}

// Returns the files that hold `column`.
std::vector<std::string> FilesOf(const DataJob& job, const std::string& column) {
  if (!job.tokens.empty()) return job.tokens;
  if (!job.plugin.empty()) return {job.plugin};
  auto array = job.arrays.find(column);
  return array != job.arrays.end() ? array->second : job.tensors;
}

bool IsThere(const std::string& file) { return std::filesystem::exists(file); }

}  // namespace

Data::Column Data::Find(const std::string& name, const std::string& where) const {
  std::vector<std::string> names;
  for (size_t c = 0; c < known_.size(); ++c) {
    names.push_back(known_[c].name);
    if (known_[c].name != name) continue;
    at::ScalarType type = DtypeOf(known_[c].dtype);
    return {static_cast<int>(c), type, type, known_[c].shape};
  }
  throw Error(where, "the source has no column " + Quote(name) + Suggest(name, names),
              "it has: " + Join(names, ", "));
}

Data::Data(std::shared_ptr<DataSource> source, const DataJob& job, const Manifest& manifest,
           const std::string& where)
    : where_(where), source_(std::move(source)), known_(source_->columns()) {
  const bool tokens = !job.tokens.empty();
  if (tokens && manifest.inputs.size() != 1)
    throw Error(where,
                "the model takes " + Counted(manifest.inputs.size(), "input") +
                    ", and a token file feeds one",
                "use \"tensors\" and name a tensor for each input");
  auto name_of = [&](const char* key, const std::string& column) {
    const std::vector<std::string> files = FilesOf(job, column);
    return where + (tokens ? ".tokens" : key + (" " + Quote(column))) + " (" +
           (files.empty() ? "" : files[0]) + (files.size() > 1 ? ", ..." : "") + ")";
  };
  std::vector<std::string> names;
  for (int id : manifest.inputs) names.push_back(manifest.values[id].name);
  for (const auto& [input, column] : job.inputs)
    if (std::find(names.begin(), names.end(), input) == names.end())
      throw Error(where + ".inputs",
                  "the model has no input \"" + input + "\"" + Suggest(input, names),
                  CallText(manifest));
  for (int id : manifest.inputs) {
    const ValueInfo& value = manifest.values[id];
    auto column = job.inputs.find(value.name);
    if (!tokens && column == job.inputs.end())
      throw Error(where + ".inputs", "the input \"" + value.name + "\" is missing",
                  CallText(manifest));
    columns_.push_back(Find(tokens ? "tokens" : column->second, where + ".inputs"));
    input_names_.push_back(name_of(".inputs", tokens ? "tokens" : column->second));
    // If the model file does not give a dtype, the data's is used.
    columns_.back().wanted = value.dtype.empty() ? columns_.back().type : DtypeOf(value.dtype);
    if (tokens && !at::isIntegralType(columns_.back().wanted, /*includeBool=*/false))
      throw Error(where, "input \"" + value.name + "\" takes " + value.dtype +
                             ", and a token file holds whole numbers",
                  "name the tensors of the model's inputs: \"tensors\" or \"arrays\"");
    if (!tokens && columns_.back().type != columns_.back().wanted)
      throw Error(where + ".inputs",
                  "\"" + column->second + "\" is " + DtypeName(columns_.back().type) +
                      ", input \"" + value.name + "\" takes " + value.dtype,
                  "save \"" + column->second + "\" as " + value.dtype);
  }
  for (const std::string& target :
       job.targets.empty() ? std::vector<std::string>{job.target} : job.targets) {
    targets_.push_back(target.empty() ? Column() : Find(target, where + ".target"));
    target_names_.push_back(name_of(".target", target));
  }
  if (job.length.empty()) return;
  length_ = Find(job.length, where + ".length");
  if (length_.type != at::kLong || !length_.shape.empty() || columns_.empty() ||
      columns_[0].shape.empty())
    throw Error(where + ".length",
                "\"" + job.length + "\" is not one int64 per sample, or there is nothing to cut");
}

size_t Data::RowBytes(int column) const {
  const DataColumn& info = known_[static_cast<size_t>(column)];
  size_t bytes = c10::elementSize(DtypeOf(info.dtype));
  for (int64_t size : info.shape) bytes *= static_cast<size_t>(size);
  return bytes;
}

bool Data::Cut(const Column& column) const {
  return length_.index >= 0 && !column.shape.empty() && column.shape[0] == columns_[0].shape[0];
}

int64_t Data::Longest(const int64_t* rows, int64_t count) const {
  if (length_.index < 0) return -1;
  int64_t longest = 1;
  for (int64_t r = 0; r < count; ++r) {
    int64_t length = 0;
    source_->Read(length_.index, rows[r], reinterpret_cast<char*>(&length));
    if (length < 0 || length > columns_[0].shape[0])
      throw Error(where_ + ".length", "sample " + std::to_string(rows[r]) + " has the length " +
                                          std::to_string(length) + ": samples hold " +
                                          std::to_string(columns_[0].shape[0]));
    longest = std::max(longest, length);
  }
  return longest;
}

TensorSpec Data::Spec(int input, int64_t count, int64_t length) const {
  const Column& column = ColumnOf(input);
  TensorSpec spec{column.wanted, column.shape, true};
  if (length >= 0 && Cut(column)) spec.sizes[0] = length;
  spec.sizes.insert(spec.sizes.begin(), count);
  return spec;
}

at::Tensor Data::Rows(int input, const int64_t* rows, int64_t count, int64_t length) const {
  const Column& column = ColumnOf(input);
  std::vector<int64_t> shape = column.shape;
  shape.insert(shape.begin(), count);
  at::Tensor out = at::empty(shape, column.type);
  size_t bytes = count ? out.nbytes() / static_cast<size_t>(count) : 0;
  char* to = static_cast<char*>(out.data_ptr());
  for (int64_t r = 0; r < count; ++r, to += bytes) source_->Read(column.index, rows[r], to);
  if (length >= 0 && Cut(column)) out = out.narrow(1, 0, length).contiguous();
  if (column.type == column.wanted) return out;
  const at::Tensor converted = out.to(column.wanted);
  if (!converted.to(column.type).equal(out))
    throw Error(where_, "a token of samples " + std::to_string(rows[0]) + " to " +
                            std::to_string(rows[count - 1]) + " does not fit into " +
                            DtypeName(column.wanted) + ", which the model takes");
  return converted;
}

std::unique_ptr<Data> OpenData(const DataJob& job, const Manifest& manifest,
                               const std::string& where) {
  std::shared_ptr<DataSource> source;
  try {
    source = OpenSource(job);
  } catch (const std::exception& e) {
    std::vector<std::string> files;
    for (const auto& column : job.arrays)
      files.insert(files.end(), column.second.begin(), column.second.end());
    for (const std::vector<std::string>& more : {job.tokens, job.tensors})
      files.insert(files.end(), more.begin(), more.end());
    const bool there = std::all_of(files.begin(), files.end(), IsThere);
    throw Error(where + KeyOf(job), e.what(),
                there ? "" : "paths are relative to the folder of the job file");
  }
  return std::make_unique<Data>(std::move(source), job, manifest, where);
}

static int64_t SamplesOfMinibatch(const Job& job) {
  return job.minibatch_size ? job.minibatch_size : job.microbatches * job.microbatch_size;
}

static int64_t MinibatchesOf(const Job& job, int64_t samples) {
  const int64_t each = SamplesOfMinibatch(job);
  return samples / each + (job.partial && samples % each >= job.microbatches);
}

void CheckEnough(const Job& job, int64_t samples) {
  if (MinibatchesOf(job, samples) > 0) return;
  throw Error(job.path,
              "the data has " + Counted(samples, "sample") + ", one minibatch takes " +
                  (job.partial ? "at least " + std::to_string(job.microbatches)
                               : std::to_string(SamplesOfMinibatch(job)) +
                                     (job.minibatch_size ? "" : " (microbatches x microbatch_size)")),
              std::string("give it more data, or make ") +
                  (samples == 0         ? "\"sequence_length\", if it has one,"
                   : job.partial        ? "\"microbatches\""
                   : job.minibatch_size ? "\"minibatch_size\""
                                        : "\"microbatches\" or \"microbatch_size\"") +
                  " smaller");
}

void CheckEnoughFiles(const Job& job, const DataJob& data) {
  if (!data.plugin.empty()) return;
  std::shared_ptr<DataSource> source;
  try {
    source = OpenSource(data);
  } catch (const std::exception&) {
    return;  // this rank may need no files; one that does says what is wrong
  }
  CheckEnough(job, source->samples());
}

Sampler::Sampler(const Job& job, bool shuffle, const Data& data)
    : job_(job),
      shuffle_(shuffle),
      data_(data),
      samples_(SamplesOfMinibatch(job)),
      per_epoch_(MinibatchesOf(job, data.samples())) {
  CheckEnough(job, data.samples());
}

int64_t Sampler::Minibatches(int64_t samples) const { return MinibatchesOf(job_, samples); }

void Sampler::StartAt(int64_t minibatch, const DataPosition& position) {
  first_ = minibatch;
  start_ = position;
  if (start_.sample < 0 || start_.sample > data_.samples())
    throw Error(job_.path, "the checkpoint stopped at sample " + std::to_string(start_.sample) +
                               " of an epoch, the data has " + std::to_string(data_.samples()));
}

DataPosition Sampler::Position(int64_t minibatch) const {
  int64_t ahead = minibatch - first_;
  int64_t left = Minibatches(data_.samples() - start_.sample);  // left in the first epoch
  if (ahead < left) return {start_.epoch, start_.sample + ahead * samples_};
  ahead -= left;
  return {start_.epoch + 1 + ahead / per_epoch_, ahead % per_epoch_ * samples_};
}

int64_t Sampler::Samples(int64_t minibatch) const {
  return std::min(samples_, data_.samples() - Position(minibatch).sample);
}

int64_t Sampler::Samples(int64_t minibatch, int microbatch) const {
  int64_t samples = Samples(minibatch);
  return samples / job_.microbatches + (microbatch < samples % job_.microbatches);
}

std::pair<const int64_t*, int64_t> Sampler::Place(int64_t minibatch, int microbatch) {
  DataPosition position = Position(minibatch);
  if (position.epoch != epoch_) {
    order_ = EpochOrder(data_.samples(), job_.seed, position.epoch, shuffle_);
    epoch_ = position.epoch;
  }
  const int64_t samples = Samples(minibatch), each = samples / job_.microbatches;
  const int64_t first =
      microbatch * each + std::min<int64_t>(microbatch, samples % job_.microbatches);
  return {order_.data() + position.sample + first, Samples(minibatch, microbatch)};
}

at::Tensor Sampler::Microbatch(int input, int64_t minibatch, int microbatch) {
  auto [rows, count] = Place(minibatch, microbatch);
  return data_.Rows(input, rows, count, data_.Longest(rows, count));
}

TensorSpec Sampler::Spec(int input, int64_t minibatch, int microbatch) {
  int64_t length = -1;
  if (minibatch == told_minibatch_)
    length = told_lengths_[static_cast<size_t>(microbatch)];
  else if (data_.has_lengths())
    length = LengthOf(minibatch, microbatch);
  return data_.Spec(input, Samples(minibatch, microbatch), length);
}

int64_t Sampler::LengthOf(int64_t minibatch, int microbatch) {
  auto [rows, count] = Place(minibatch, microbatch);
  return data_.Longest(rows, count);
}

std::vector<int64_t> Sampler::Lengths(int64_t minibatch) {
  std::vector<int64_t> lengths;
  for (int m = 0; m < job_.microbatches; ++m) lengths.push_back(LengthOf(minibatch, m));
  return lengths;
}

void Sampler::SetLengths(int64_t minibatch, std::vector<int64_t> lengths) {
  told_minibatch_ = minibatch;
  told_lengths_ = std::move(lengths);
}

}  // namespace pipewright
