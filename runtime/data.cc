#include "runtime/data.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "plan/error.h"
#include "plan/mapped_file.h"
#include "plan/safetensors.h"
#include "plan/text.h"
#include "runtime/dtype.h"

namespace pipewright {

namespace {

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15ull;

// Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (2014).
uint64_t SplitMix64(uint64_t x) {
  uint64_t z = x + kGolden;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// A language model's text: sample w is tokens w*T to w*T+T, its target the same moved by one.
class TokenData : public Data {
 public:
  TokenData(const Job& job, const Manifest& manifest)
      : file_(job.data.tokens),
        bytes_(file_.bytes()),
        width_(job.data.token_bytes),
        length_(job.data.sequence_length) {
    if (manifest.inputs.size() != 1)
      throw Error(job.path + ": data",
                  "the model takes " + std::to_string(manifest.inputs.size()) +
                      " inputs, and a token file feeds one",
                  "use \"tensors\" and name a tensor for each input");
    if (bytes_.size() % width_)
      throw Error(job.data.tokens, "its size is not a multiple of " + std::to_string(width_) +
                                       " bytes, the tokens' dtype");
    dtype_ = DtypeOf(manifest.values[manifest.inputs[0]].dtype);
    tokens_ = static_cast<int64_t>(bytes_.size() / width_);
  }
  int64_t samples() const override { return tokens_ > 0 ? (tokens_ - 1) / length_ : 0; }
  int64_t tokens_per_sample() const override { return length_; }

  at::Tensor Rows(int input, const int64_t* rows, int64_t count) const override {
    at::Tensor out = at::empty({count, length_}, at::kLong);
    int64_t* to = out.mutable_data_ptr<int64_t>();
    for (int64_t r = 0; r < count; ++r) {
      const char* from = bytes_.data() + (rows[r] * length_ + (input < 0)) * width_;
      for (int64_t i = 0; i < length_; ++i, from += width_) {
        uint32_t token = 0;
        std::memcpy(&token, from, width_);  // little endian, as the file
        *to++ = token;
      }
    }
    return input < 0 ? out : out.to(dtype_);
  }

 private:
  MappedFile file_;
  std::string_view bytes_;
  size_t width_;
  int64_t length_, tokens_;
  at::ScalarType dtype_;
};

// Rows of tensors in a safetensors file, which is mapped and never read whole.
class TensorData : public Data {
 public:
  TensorData(const Job& job, const Manifest& manifest) : file_(job.data.tensors) {
    std::vector<std::string> names;
    for (int id : manifest.inputs) names.push_back(manifest.values[id].name);
    for (const auto& [input, tensor] : job.data.inputs)
      if (std::find(names.begin(), names.end(), input) == names.end())
        throw Error(job.path + ": data.inputs",
                    "the model has no input \"" + input + "\"" + Suggest(input, names),
                    "its inputs: " + Join(names, ", "));
    for (size_t i = 0; i < names.size(); ++i) {
      auto found = job.data.inputs.find(names[i]);
      if (found == job.data.inputs.end())
        throw Error(job.path + ": data.inputs",
                    "no tensor is named for input \"" + names[i] + "\"");
      const ValueInfo& value = manifest.values[manifest.inputs[i]];
      columns_.push_back(Open(found->second));
      if (value.kind == "tensor" && DtypeName(columns_.back().type) != value.dtype)
        throw Error(job.data.tensors, "\"" + found->second + "\" is " +
                                          DtypeName(columns_.back().type) + ", input \"" +
                                          names[i] + "\" takes " + value.dtype);
    }
    if (!job.data.target.empty()) target_ = Open(job.data.target);
    for (const Column& column : columns_) CheckRows(job, column);
    if (target_.info) CheckRows(job, target_);
  }
  int64_t samples() const override { return columns_[0].info->shape[0]; }

  at::Tensor Rows(int input, const int64_t* rows, int64_t count) const override {
    const Column& column = input < 0 ? target_ : columns_[input];
    std::vector<int64_t> shape = column.info->shape;
    uint64_t row = shape[0] ? (column.info->end - column.info->begin) / shape[0] : 0;
    shape[0] = count;
    at::Tensor out = at::empty(shape, column.type);
    char* to = static_cast<char*>(out.data_ptr());
    for (int64_t r = 0; r < count; ++r) file_.Read(*column.info, rows[r] * row, to + r * row, row);
    return out;
  }

 private:
  struct Column {
    const TensorInfo* info = nullptr;
    at::ScalarType type = at::kFloat;
  };
  Column Open(const std::string& name) const {
    const TensorInfo& info = file_.At(name);
    if (info.shape.empty())
      throw Error(file_.path(),
                  "\"" + name + "\" is a scalar; its first dimension must be samples");
    return {&info, DtypeOfSafetensors(info.dtype)};
  }
  void CheckRows(const Job& job, const Column& column) const {
    if (column.info->shape[0] != samples())
      throw Error(job.data.tensors, "\"" + column.info->name + "\" has " +
                                        std::to_string(column.info->shape[0]) + " samples, \"" +
                                        columns_[0].info->name + "\" has " +
                                        std::to_string(samples()));
  }

  SafetensorsFile file_;
  std::vector<Column> columns_;
  Column target_;
};

}  // namespace

std::vector<int64_t> EpochOrder(int64_t count, uint64_t seed, int64_t epoch, bool shuffle) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), int64_t{0});
  if (!shuffle) return order;
  uint64_t key = SplitMix64(seed + kGolden * (static_cast<uint64_t>(epoch) + 1));
  std::vector<std::pair<uint64_t, int64_t>> keyed(count);
  for (int64_t i = 0; i < count; ++i) keyed[i] = {SplitMix64(key ^ static_cast<uint64_t>(i)), i};
  std::sort(keyed.begin(), keyed.end());
  for (int64_t i = 0; i < count; ++i) order[i] = keyed[i].second;
  return order;
}

std::unique_ptr<Data> OpenData(const Job& job, const Manifest& manifest) {
  if (!job.data.tokens.empty()) return std::make_unique<TokenData>(job, manifest);
  return std::make_unique<TensorData>(job, manifest);
}

Sampler::Sampler(const Job& job, const Data& data)
    : job_(job),
      data_(data),
      minibatch_(job.microbatches * job.microbatch_size),
      per_epoch_(data.samples() / minibatch_) {
  if (per_epoch_ == 0)
    throw Error(job.path, "the data has " + std::to_string(data.samples()) +
                              " samples, one minibatch takes " + std::to_string(minibatch_) +
                              " (microbatches x microbatch_size)");
}

void Sampler::StartAt(int64_t step, const DataPosition& position) {
  first_step_ = step;
  start_ = position;
  if (start_.sample < 0 || start_.sample > data_.samples())
    throw Error(job_.path, "the checkpoint stopped at sample " + std::to_string(start_.sample) +
                               " of an epoch, the data has " + std::to_string(data_.samples()));
}

DataPosition Sampler::Position(int64_t step) const {
  int64_t ahead = step - first_step_;
  int64_t left = (data_.samples() - start_.sample) / minibatch_;  // of the first epoch
  if (ahead < left) return {start_.epoch, start_.sample + ahead * minibatch_};
  ahead -= left;
  return {start_.epoch + 1 + ahead / per_epoch_, ahead % per_epoch_ * minibatch_};
}

at::Tensor Sampler::Microbatch(int input, int64_t step, int microbatch) {
  DataPosition position = Position(step);
  if (position.epoch != epoch_) {
    order_ = EpochOrder(data_.samples(), job_.seed, position.epoch, job_.data.shuffle);
    epoch_ = position.epoch;
  }
  int64_t first = position.sample + microbatch * job_.microbatch_size;
  return data_.Rows(input, order_.data() + first, job_.microbatch_size);
}

}  // namespace pipewright
