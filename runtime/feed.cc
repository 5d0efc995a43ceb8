#include "runtime/feed.h"

#include <ATen/ATen.h>

#include <numeric>

#include "runtime/loss.h"

namespace pipewright {

void Feed::Open(const Job& job, const DataJob& source, const Manifest& manifest,
                const std::string& where) {
  data = OpenData(source, manifest, where);
  sampler = std::make_unique<Sampler>(job, source.shuffle, *data);
}

std::vector<TensorSpec> Feed::Specs(const Manifest& manifest, int64_t minibatch, int microbatch) {
  std::vector<TensorSpec> specs;
  for (size_t i = 0; i < manifest.inputs.size(); ++i)
    specs.push_back(sampler->Spec(static_cast<int>(i), minibatch, microbatch));
  return specs;
}

double Feed::LossWeight(const Job& job, int64_t minibatch, int microbatch) {
  // Token files have no targets below 0.
  const bool count_targets = job.loss.kind == LossJob::kCrossEntropy &&
                             (job.data.tokens.empty() || job.loss.ignore_index >= 0);
  const bool alike = !job.partial && job.minibatch_size % job.microbatches == 0;
  if (alike && !count_targets && job.data.length.empty()) return 1;
  int64_t first = minibatch - minibatch % job.accumulate;
  if (first != first_) {
    std::vector<int64_t> counts;
    for (int64_t b = first; b < first + job.accumulate; ++b)
      for (int m = 0; m < job.microbatches; ++m)
        counts.push_back(count_targets || job.loss.kind == LossJob::kMse
                             ? LossCount(job.loss, sampler->Microbatch(-1, b, m), 0)
                             : sampler->Samples(b, m));
    int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    weights_.assign(counts.size(), 1);
    for (size_t i = 0; total > 0 && i < counts.size(); ++i)
      weights_[i] = static_cast<double>(counts[i] * static_cast<int64_t>(counts.size())) /
                    static_cast<double>(total);
    first_ = first;
  }
  return weights_[static_cast<size_t>((minibatch - first) * job.microbatches + microbatch)];
}

}  // namespace pipewright
