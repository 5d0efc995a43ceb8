#include "runtime/stage/gradient_groups.h"

#include <algorithm>
#include <set>

#include "base/dtype.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

int64_t Elements(const WeightInfo& weight) {
  int64_t count = 1;
  for (int64_t size : weight.shape) count *= size;
  return count;
}

size_t IndexOf(const ModuleInfo& module, const std::string& name) {
  size_t i = 0;
  while (module.held[i].name != name) ++i;
  return i;
}

// Adds a term to a group: the contributions of the replicas of `stage`, and which of them receive
// the sum.
void AddTerm(int stage, const std::vector<int>& replicas, const GradientOptions& options,
             std::vector<WeightSlice> slices, SharedGroup& exchange, GradientGroup& content) {
  const int term = static_cast<int>(content.terms.size());
  content.terms.push_back(std::move(slices));
  auto add = [&](int rank, bool gives, bool gets, int microbatch) {
    exchange.push_back({stage, rank, term, gives, gets});
    content.microbatch.push_back(microbatch);
  };
  if (!options.exact || replicas.size() == 1) {
    for (int rank : replicas) add(rank, true, true, -1);
    return;
  }
  for (int i = 0; i < options.microbatches * options.minibatches; ++i)
    add(replicas[static_cast<size_t>(i % options.microbatches) % replicas.size()], true, false, i);
  for (int rank : replicas) add(rank, false, true, -1);
}

}  // namespace

GradientGroups MakeGradientGroups(const Manifest& manifest, const Conf& conf,
                                  const GradientOptions& options) {
  GradientGroups groups;
  std::set<std::pair<int, size_t>> shared;
  for (const SharedWeight& weight : manifest.shared) {
    if (!Trained(manifest, weight)) continue;
    SharedGroup exchange;
    GradientGroup content;
    for (const SharedWeight::Holder& holder : weight.holders) {
      const ModuleInfo& module = manifest.modules[holder.module];
      size_t index = IndexOf(module, holder.name);
      shared.insert({holder.module, index});
      int stage = conf.module_to_stage[holder.module];
      AddTerm(stage, conf.stage_to_ranks[stage], options,
              {{holder.module, index, 0, Elements(module.held[index])}}, exchange, content);
    }
    groups.exchanges.push_back(std::move(exchange));
    groups.contents.push_back(std::move(content));
  }
  std::vector<size_t> turn(conf.stage_to_ranks.size());
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const int stage = conf.module_to_stage[m];
    const std::vector<int>& replicas = conf.stage_to_ranks[stage];
    if (replicas.size() < 2) continue;
    std::vector<WeightSlice> bucket;
    int64_t bytes = 0;
    auto close = [&] {
      if (bucket.empty()) return;
      SharedGroup exchange;
      GradientGroup content;
      AddTerm(stage, replicas, options, std::move(bucket), exchange, content);
      const int owner = replicas[turn[stage]++ % replicas.size()];
      for (SharedHolder& holder : exchange) holder.sums = holder.rank == owner;
      groups.exchanges.push_back(std::move(exchange));
      groups.contents.push_back(std::move(content));
      bucket.clear();
      bytes = 0;
    };
    const ModuleInfo& module = manifest.modules[m];
    for (size_t w = 0; w < module.held.size(); ++w) {
      const WeightInfo& weight = module.held[w];
      if (weight.kind != WeightKind::kParameter || !weight.requires_grad) continue;
      if (shared.count({static_cast<int>(m), w})) continue;
      const int64_t element = static_cast<int64_t>(c10::elementSize(DtypeOf(weight.dtype)));
      const int64_t total = Elements(weight);
      for (int64_t begin = 0; begin == 0 || begin < total;) {
        int64_t room = std::max<int64_t>(1, (options.bucket_bytes - bytes) / element);
        int64_t count = std::min(room, total - begin);
        bucket.push_back({static_cast<int>(m), w, begin, count});
        begin += std::max<int64_t>(count, 1);
        bytes += count * element;
        if (bytes >= options.bucket_bytes) close();
      }
    }
    close();
  }
  return groups;
}

}  // namespace pipewright
