#include "runtime/feed.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "runtime/exec/phase.h"
#include "runtime/optimizer/loss.h"

namespace pipewright {

void Feed::Open(const Job& job, const DataJob& source, const RunPlan& run, const std::string& where,
                Transport& transport) {
  job_ = &job;
  manifest_ = &run.manifest;
  const std::vector<bool> reads = ReadingRanks(run, job);
  const auto first = std::find(reads.begin(), reads.end(), true);
  const int teller = static_cast<int>(first - reads.begin()), rank = transport.rank();
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

at::Tensor Feed::Input(int i, int64_t minibatch, int microbatch) {
  return sampler->Microbatch(i, minibatch, microbatch);
}

TensorSpec Feed::Target(int loss, int64_t minibatch, int microbatch) {
  return sampler->Spec(-1 - loss, minibatch, microbatch);
}

std::string Feed::TargetName(int loss) { return data->TargetName(loss); }

void Feed::Finish() {
  if (lengths_) lengths_->Finish();
}

double Feed::LossWeight(int loss, int64_t minibatch, int microbatch) {
  const Job& job = *job_;
  // Token files have no targets below 0.
  auto counts_targets = [&](const LossJob& one) {
    return one.kind == LossJob::kCrossEntropy && (job.data.tokens.empty() || one.ignore_index >= 0);
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
            counts.push_back(one.kind == LossJob::kOutput ? sampler->Samples(b, m)
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
