#include "runtime/feed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/text.h"
#include "runtime/exec/phase.h"
#include "runtime/optimizer/loss.h"
#include "tensors/finite.h"

namespace pipewright {

void Feed::Open(const Job& job, const DataJob& source, const RunPlan& run, const std::string& where,
                Transport& transport) {
  job_ = &job;
  manifest_ = &run.manifest;
  const std::vector<bool> reads = ReadingRanks(run, job);
  const auto first = std::find(reads.begin(), reads.end(), true);
  const int teller = static_cast<int>(first - reads.begin()), rank = transport.rank();
  source_ = &source;
  reads_ = reads[rank];
  std::string description;
  Phase(transport, "reading", [&] {
    if (reads[rank]) {
      data = OpenData(source, run.manifest, where);
      sampler = std::make_unique<Sampler>(job, source.shuffle, *data);
    }
    if (rank == teller) {
      description = DescribeSource(data->source());
      sampler->Lengths(0);  // fails here, not later while other ranks wait for it
    }
  });
  std::vector<int> told;
  for (size_t r = 0; r < reads.size(); ++r)
    if (!reads[r]) told.push_back(static_cast<int>(r));
  if (told.empty()) return;
  description = transport.AllGather(description)[teller];
  if (!reads[rank]) {
    data = std::make_unique<Data>(DescribedSource(description), source, run.manifest, where);
    sampler = std::make_unique<Sampler>(job, source.shuffle, *data);
  }
  if (data->has_lengths() && (rank == teller || !reads[rank]))
    lengths_ = std::make_unique<SharedLengths>(
        transport, teller, told, job.microbatches,
        [this](int64_t minibatch) { return sampler->Lengths(minibatch); });
}

int64_t MinibatchesOf(const Job& job) {
  int64_t count = 0;
  return __builtin_mul_overflow(job.steps, job.accumulate, &count)
             ? std::numeric_limits<int64_t>::max()
             : count;
}

std::vector<TensorSpec> Feed::Specs(int64_t minibatch, int microbatch) {
  if (lengths_ && begun_ != minibatch) {
    std::vector<int64_t> lengths = lengths_->Of(minibatch);
    if (!lengths.empty()) sampler->SetLengths(minibatch, std::move(lengths));
    begun_ = minibatch;
  }
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < manifest_->inputs.size(); ++i)
    specs.push_back(sampler->Spec(static_cast<int>(i), minibatch, microbatch));
  return specs;
}

// Microbatches of a minibatch differ by at most one sample, and the first has the most.
std::vector<std::vector<TensorSpec>> Feed::SmallerSpecs() {
  if (data->has_lengths() && !reads_) return {};
  const int last = job_->microbatches - 1;
  const int64_t end = sampler->per_epoch() - 1;
  std::vector<std::pair<int64_t, int>> places = {{0, last}};
  if (minibatches > end)
    for (int microbatch : {0, last}) places.emplace_back(end, microbatch);
  std::vector<std::vector<TensorSpec>> smaller;
  for (const auto& [minibatch, microbatch] : places) {
    if (sampler->Samples(minibatch, microbatch) == sampler->Samples(0, 0)) continue;
    std::vector<TensorSpec>& specs = smaller.emplace_back();
    for (size_t i = 0; i < manifest_->inputs.size(); ++i)
      specs.push_back(sampler->Spec(static_cast<int>(i), minibatch, microbatch));
  }
  return smaller;
}

at::Tensor Feed::Input(int i, int64_t minibatch, int microbatch) {
  return sampler->Microbatch(i, minibatch, microbatch);
}

TensorSpec Feed::Target(int loss, int64_t minibatch, int microbatch) {
  return sampler->Spec(-1 - loss, minibatch, microbatch);
}

std::string Feed::TargetName(int loss) { return data->TargetName(loss); }

void Feed::StartAt(int64_t minibatch, const DataPosition& position) {
  sampler->StartAt(minibatch, position);
  begun_ = -1;
  if (lengths_) lengths_->Restart();
}

void Feed::Finish() {
  if (lengths_) lengths_->Finish();
}

std::string Feed::NotFinite(int64_t minibatch, int microbatch) {
  if (!reads_) return "";
  int64_t first = -1;  // row
  std::string text;
  auto look = [&](int input, const std::string& name) {
    const at::Tensor rows = sampler->Microbatch(input, minibatch, microbatch);
    if (AllFinite(rows)) return;
    for (int64_t r = 0; r < rows.size(0) && (first < 0 || r < first); ++r) {
      const std::string what = pipewright::NotFinite(rows[r]);
      // Masks hold -inf, and targets do not.
      if (what.empty() || (what == "-inf" && input >= 0)) continue;
      first = r;
      text = "sample " + std::to_string(sampler->Sample(minibatch, microbatch, r)) + " of " + name +
             " holds " + what;
    }
  };
  for (size_t i = 0; i < manifest_->inputs.size(); ++i)
    look(static_cast<int>(i), data->InputName(static_cast<int>(i)));
  for (size_t k = 0; k < job_->losses.size(); ++k)
    if (job_->losses[k].kind != LossJob::kOutput)
      look(-1 - static_cast<int>(k), data->TargetName(static_cast<int>(k)));
  return text;
}

std::vector<Found> Feed::Reads(bool whole) {
  if (!reads_) return {};
  std::vector<std::string> files = source_->tokens;
  files.insert(files.end(), source_->tensors.begin(), source_->tensors.end());
  for (const auto& [name, parts] : source_->arrays)
    files.insert(files.end(), parts.begin(), parts.end());
  std::vector<Found> found;
  for (size_t i = 0; i < files.size(); ++i)
    found.push_back(FoundFile("data file " + std::to_string(i), files[i], whole));
  if (source_->plugin.empty()) return found;
  found.push_back(FoundFile("data library", source_->plugin, /*whole=*/true));
  // The files that a library reads are unknown: compares its first, middle and last samples.
  const DataSource& source = data->source();
  std::string samples = DescribeSource(source);
  const std::vector<DataColumn> columns = source.columns();
  for (int64_t sample : {int64_t{0}, source.samples() / 2, source.samples() - 1})
    for (size_t c = 0; c < columns.size() && sample >= 0; ++c) {
      std::string row(data->RowBytes(static_cast<int>(c)), '\0');
      source.Read(static_cast<int>(c), sample, row.data());
      samples += row;
    }
  found.push_back({"samples", source_->plugin,
                   Counted(source.samples(), "sample") + " with the hash " + HexHash(samples),
                   "the library must give every rank the same samples"});
  return found;
}

int64_t Feed::Samples(int64_t minibatch, int microbatch) {
  return sampler->Samples(minibatch, microbatch);
}

double Feed::LossWeight(int loss, int64_t minibatch, int microbatch) {
  const Job& job = *job_;
  // Token files have no targets below 0.
  auto counts_targets = [&](const LossJob& one) {
    return one.HasClasses() && (job.data.tokens.empty() || one.ignore_index >= 0);
  };
  const bool alike = !job.partial && job.minibatch_size % job.microbatches == 0;
  if (alike && job.data.length.empty() && !counts_targets(job.losses[loss])) return 1;
  int64_t first = minibatch - minibatch % job.accumulate;
  if (first != first_) {
    weights_.clear();
    for (size_t k = 0; k < job.losses.size(); ++k) {
      const LossJob& one = job.losses[k];
      const int target = -1 - static_cast<int>(k);
      std::vector<int64_t> counts;
      for (int64_t b = first; b < first + job.accumulate; ++b)
        for (int m = 0; m < job.microbatches; ++m)
          if (counts_targets(one))
            counts.push_back(LossCount(one, sampler->Microbatch(target, b, m), 0));
          else
            counts.push_back(one.kind == LossJob::kOutput || one.batch_mean
                                 ? sampler->Samples(b, m)
                                 : sampler->Spec(target, b, m).bytes());
      int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
      weights_.emplace_back(counts.size(), 1);
      for (size_t i = 0; total > 0 && i < counts.size(); ++i)
        weights_[k][i] = static_cast<double>(counts[i]) * static_cast<double>(counts.size()) /
                         static_cast<double>(total);
    }
    first_ = first;
  }
  return weights_[loss][static_cast<size_t>((minibatch - first) * job.microbatches + microbatch)];
}

}  // namespace pipewright
