#include "runtime/data/signatures.h"

#include <algorithm>
#include <stdexcept>

#include "base/json.h"

namespace pipewright {

namespace {

class Described : public DataSource {
 public:
  explicit Described(const Json& json)
      : samples_(json.at("samples")), tokens_(json.at("tokens_per_sample")) {
    for (const Json& column : json.at("columns"))
      columns_.push_back({column.at("name"), column.at("dtype"), column.at("shape")});
  }
  std::vector<DataColumn> columns() const override { return columns_; }
  int64_t samples() const override { return samples_; }
  int64_t tokens_per_sample() const override { return tokens_; }
  void Read(int, int64_t, char*) const override {
    throw std::logic_error("this rank does not read the data");
  }

 private:
  std::vector<DataColumn> columns_;
  int64_t samples_, tokens_;
};

}  // namespace

std::vector<bool> ReadingRanks(const RunPlan& run, const Job& job) {
  const Manifest& manifest = run.manifest;
  std::vector<bool> reads(static_cast<size_t>(run.graph.ranks));
  auto module_reads = [&](int module) {
    if (module < 0) return;
    for (int rank : run.conf.stage_to_ranks[run.conf.module_to_stage[module]]) reads[rank] = true;
  };
  for (int input : manifest.inputs)
    for (int module : manifest.values[input].consumers) module_reads(module);
  const bool targets = std::any_of(job.losses.begin(), job.losses.end(), [](const LossJob& loss) {
    return loss.kind != LossJob::kOutput;
  });
  for (int output : manifest.outputs)
    if (targets) module_reads(manifest.values[output].producer);
  if (std::find(reads.begin(), reads.end(), true) == reads.end()) reads[0] = true;
  return reads;
}

std::string DescribeSource(const DataSource& source) {
  Json json{{"samples", source.samples()},
            {"tokens_per_sample", source.tokens_per_sample()},
            {"columns", Json::array()}};
  for (const DataColumn& column : source.columns())
    json["columns"].push_back(
        {{"name", column.name}, {"dtype", column.dtype}, {"shape", column.shape}});
  return json.dump();
}

std::shared_ptr<DataSource> DescribedSource(const std::string& description) {
  return std::make_shared<Described>(Json::parse(description));
}

SharedLengths::SharedLengths(Transport& transport, int teller, std::vector<int> told,
                             int microbatches, std::function<std::vector<int64_t>(int64_t)> lengths)
    : transport_(transport),
      teller_(teller),
      told_(std::move(told)),
      microbatches_(static_cast<size_t>(microbatches)),
      lengths_(std::move(lengths)) {}

void SharedLengths::Start(int64_t minibatch) {
  const int tag = transport_.max_tag() - kSizesTag;
  const bool tells = transport_.rank() == teller_;
  arriving_ = std::make_shared<std::vector<int64_t>>(microbatches_);
  if (tells) *arriving_ = lengths_(minibatch);
  const Bundle bundle{{{arriving_->data(), microbatches_ * sizeof(int64_t)}}, arriving_};
  if (tells)
    for (int rank : told_) tokens_.push_back(transport_.Send(rank, tag, bundle));
  else
    tokens_.push_back(transport_.Recv(teller_, tag, bundle));
  ahead_ = minibatch;
}

std::vector<int64_t> SharedLengths::Of(int64_t minibatch) {
  const bool tells = transport_.rank() == teller_;
  if (ahead_ != minibatch) Start(minibatch);
  if (!tells) Finish();
  std::vector<int64_t> lengths = tells ? std::vector<int64_t>() : *arriving_;
  std::erase_if(tokens_, [&](const Token& token) { return transport_.Test(token); });
  Start(minibatch + 1);
  return lengths;
}

void SharedLengths::Finish() {
  for (const Token& token : tokens_) transport_.WaitFor(token, {Awaited::kSizes, teller_});
  tokens_.clear();
}

}  // namespace pipewright
