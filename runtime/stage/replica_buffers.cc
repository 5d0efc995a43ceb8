#include "runtime/stage/replica_buffers.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tensors/device_memory.h"

namespace pipewright {

ReplicaBuffers::ReplicaBuffers(const Manifest& manifest, const Conf& conf, int microbatches,
                               int minibatches, const std::map<int, LoadedModule>& modules)
    : manifest_(manifest),
      conf_(conf),
      microbatches_(microbatches),
      minibatches_(minibatches),
      modules_(modules) {
  for (const auto& [index, module] : modules) {
    const std::vector<int>& replicas = conf.stage_to_ranks[conf.module_to_stage[index]];
    if (replicas.size() < 2) continue;
    for (size_t w = 0; w < module.weights.size(); ++w) {
      const WeightInfo& info = manifest.modules[index].held[w];
      if (info.kind != WeightKind::kBuffer || info.merge == BufferMerge::kNone) continue;
      Buffer buffer;
      buffer.weight = w;
      buffer.merge = info.merge;
      // Edited code may use the buffer differently.
      if (info.merge == BufferMerge::kUpdates && !module.kept_parts[w])
        buffer.merge = BufferMerge::kMean;
      const at::ScalarType type = module.weights[w].scalar_type();
      const bool counts = !at::isFloatingType(type) && !at::isComplexType(type);
      if (counts && buffer.merge != BufferMerge::kSum) continue;
      if (buffer.merge == BufferMerge::kUpdates) buffer.kept = *module.kept_parts[w];
      buffers_[index].push_back(std::move(buffer));
    }
  }
}

at::Tensor ReplicaBuffers::Now(int module, const Buffer& buffer) const {
  return modules_.at(module).weights[buffer.weight].detach();
}

void ReplicaBuffers::Before(int module) {
  auto found = buffers_.find(module);
  if (found == buffers_.end()) return;
  for (Buffer& buffer : found->second) {
    const bool updates = buffer.merge == BufferMerge::kUpdates;
    if (!buffer.start.defined() || updates) buffer.before = Now(module, buffer).clone();
    if (!buffer.start.defined()) buffer.start = buffer.before;
  }
}

void ReplicaBuffers::After(int module, int place) {
  auto found = buffers_.find(module);
  if (found == buffers_.end()) return;
  for (Buffer& buffer : found->second)
    if (buffer.merge == BufferMerge::kUpdates)
      buffer.updates[place] =
          Now(module, buffer).to(at::kDouble).sub(buffer.before.to(at::kDouble), buffer.kept);
}

int64_t ReplicaBuffers::OwnMicrobatches(int replica, int replicas) const {
  if (replica >= microbatches_) return 0;
  return static_cast<int64_t>(minibatches_) * ((microbatches_ - replica + replicas - 1) / replicas);
}

// Returns a replica's contribution: its updates in the order of their microbatches, or the buffer.
Tensors ReplicaBuffers::Mine(int module, Buffer& buffer, int64_t own) const {
  if (buffer.merge != BufferMerge::kUpdates) return {Now(module, buffer).clone()};
  Tensors updates;
  for (auto& [place, update] : buffer.updates) updates.push_back(update);
  TORCH_CHECK(static_cast<int64_t>(updates.size()) == own, "a replica has seen ", updates.size(),
              " microbatches instead of ", own);
  return updates;
}

// `brought` is indexed by place for updates, otherwise by replica.
at::Tensor ReplicaBuffers::Merged(int module, const Buffer& buffer,
                                  const std::vector<at::Tensor>& brought) const {
  const at::Tensor now = Now(module, buffer), &start = buffer.start;
  if (buffer.merge == BufferMerge::kUpdates) {
    at::Tensor sum = start;
    for (const at::Tensor& update : brought)
      sum = sum.to(at::kDouble).mul(buffer.kept).add_(update).to(now.scalar_type());
    return sum;
  }
  if (buffer.merge == BufferMerge::kSum) {
    at::Tensor sum = start.clone();
    for (const at::Tensor& theirs : brought) sum.add_(theirs.sub(start));
    return sum;
  }
  // A buffer that no replica wrote to, as a table or a mask, keeps its bits.
  const int replicas = static_cast<int>(brought.size());
  at::Tensor written, mean;
  for (const at::Tensor& theirs : brought) {
    const at::Tensor differs = theirs.ne(start).any();
    written = written.defined() ? written.logical_or(differs) : differs;
  }
  for (int r = 0; r < replicas; ++r) {
    const double weight = static_cast<double>(OwnMicrobatches(r, replicas)) /
                          static_cast<double>(int64_t{microbatches_} * minibatches_);
    if (weight == 0) continue;
    mean = mean.defined() ? mean.add_(brought[r], weight) : brought[r].mul(weight);
  }
  return at::where(written, mean, now);
}

// Returns the tensors as they travel to or from another rank: on the device, or in host memory.
static Tensors ForTravel(Tensors tensors, bool on_device) {
  if (!on_device)
    for (at::Tensor& tensor : tensors) tensor = OnHost(tensor);
  return tensors;
}

void ReplicaBuffers::MergeStage(const std::vector<int>& replicas, const std::vector<int>& modules,
                                Transport& transport) {
  const int tag = transport.max_tag() - kLossTag;  // the losses have left: messages match in order
  const int count = static_cast<int>(replicas.size());
  const int self = static_cast<int>(std::find(replicas.begin(), replicas.end(), transport.rank()) -
                                    replicas.begin());
  std::vector<std::pair<int, Buffer*>> all;
  for (int module : modules)
    if (auto found = buffers_.find(module); found != buffers_.end())
      for (Buffer& buffer : found->second) all.emplace_back(module, &buffer);
  if (all.empty()) return;
  std::vector<Tensors> brought(count);  // [replica]
  for (auto [module, buffer] : all) {
    if (!buffer->start.defined()) buffer->start = Now(module, *buffer).clone();
    for (at::Tensor& tensor : Mine(module, *buffer, OwnMicrobatches(self, count)))
      brought[self].push_back(std::move(tensor));
  }
  Tensors merged;
  std::vector<std::pair<Token, int>> sent;  // and to whom
  if (self > 0) {
    const bool on_device = transport.TakesDevices(replicas[0]);
    for (auto [module, buffer] : all) {
      const at::Tensor now = Now(module, *buffer);
      merged.push_back(
          EmptyOn(on_device ? now.device() : at::kCPU, now.sizes(), now.scalar_type()));
    }
    sent.emplace_back(
        transport.Send(replicas[0], tag, MakeBundle(ForTravel(brought[self], on_device))),
        replicas[0]);
    transport.WaitFor(transport.Recv(replicas[0], tag, MakeBundle(merged)),
                      {Awaited::kBuffers, replicas[0]});
  } else {
    for (int r = 1; r < count; ++r) {
      const bool on_device = transport.TakesDevices(replicas[r]);
      for (auto [module, buffer] : all) {
        const at::Tensor now = Now(module, *buffer);
        const bool updates = buffer->merge == BufferMerge::kUpdates;
        const at::ScalarType type = updates ? at::kDouble : now.scalar_type();
        for (int64_t k = updates ? OwnMicrobatches(r, count) : 1; k > 0; --k)
          brought[r].push_back(EmptyOn(on_device ? now.device() : at::kCPU, now.sizes(), type));
      }
      transport.WaitFor(transport.Recv(replicas[r], tag, MakeBundle(brought[r])),
                        {Awaited::kBuffers, replicas[r]});
      for (at::Tensor& tensor : brought[r])
        tensor = OnDeviceLater(tensor, Now(all[0].first, *all[0].second).device());
    }
    std::vector<size_t> next(count, 0);
    for (auto [module, buffer] : all) {
      Tensors of_buffer;
      if (buffer->merge == BufferMerge::kUpdates)
        for (int place = 0; place < microbatches_ * minibatches_; ++place) {
          const int r = place % microbatches_ % count;
          of_buffer.push_back(brought[r][next[r]++]);
        }
      else
        for (int r = 0; r < count; ++r) of_buffer.push_back(brought[r][next[r]++]);
      merged.push_back(Merged(module, *buffer, of_buffer).contiguous());
    }
    for (int r = 1; r < count; ++r)
      sent.emplace_back(
          transport.Send(replicas[r], tag,
                         MakeBundle(ForTravel(merged, transport.TakesDevices(replicas[r])))),
          replicas[r]);
  }
  for (const auto& [token, peer] : sent) transport.WaitFor(token, {Awaited::kBuffers, peer});
  for (size_t b = 0; b < all.size(); ++b) {
    auto [module, buffer] = all[b];
    Now(module, *buffer).copy_(merged[b]);
    buffer->start.reset();
    buffer->before.reset();
    buffer->updates.clear();
  }
}

void ReplicaBuffers::Merge(Transport& transport) {
  at::NoGradGuard no_grad;
  for (size_t stage = 0; stage < conf_.stage_to_ranks.size(); ++stage) {
    const std::vector<int>& replicas = conf_.stage_to_ranks[stage];
    if (replicas.size() < 2 ||
        std::find(replicas.begin(), replicas.end(), transport.rank()) == replicas.end())
      continue;
    std::vector<int> modules;
    for (const auto& [module, buffers] : buffers_)
      if (conf_.module_to_stage[module] == static_cast<int>(stage)) modules.push_back(module);
    MergeStage(replicas, modules, transport);
  }
}

}  // namespace pipewright
