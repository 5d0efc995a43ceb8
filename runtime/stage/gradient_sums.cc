#include "runtime/stage/gradient_sums.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "runtime/exec/reduce.h"
#include "runtime/stage/island.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"

namespace pipewright {

GradientSums::GradientSums(const Manifest& manifest, const Conf& conf, int rank, at::Device device,
                           const GradientOptions& options)
    : exact_(options.exact),
      wide_(options.wide),
      microbatches_(options.microbatches),
      minibatches_(options.minibatches),
      rank_(rank),
      manifest_(manifest),
      conf_(conf),
      device_(device),
      groups_(MakeGradientGroups(manifest, conf, options)) {
  ExchangeOnDevices({});
  if (!device.is_cpu()) stream_ = c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
}

void GradientSums::ExchangeOnDevices(const DevicePeers& peers) {
  on_device_.clear();
  all_reduces_.clear();
  for (const SharedGroup& group : groups_.exchanges) {
    const RankPairs needed = ReducePairs(group), &pairs = peers.pairs;
    all_reduces_.push_back(peers.sums.count(AllReduceRanks(group)) > 0);
    on_device_.push_back(all_reduces_.back() ||
                         std::includes(pairs.begin(), pairs.end(), needed.begin(), needed.end()));
  }
}

// Makes `second` wait for everything that has been launched on `first`.
static void Follow(const c10::Stream& first, const c10::Stream& second) {
  c10::Event event(first.device_type());
  event.record(first);
  event.block(second);
}

std::shared_ptr<void> GradientSums::Exchanging(bool begins) {
  if (!stream_) return nullptr;
  if (begins) {
    computing_ = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
    Follow(*computing_, *stream_);
  }
  return std::make_shared<c10::StreamGuard>(*stream_);
}

void GradientSums::EndExchanges() {
  if (computing_) Follow(*stream_, *computing_);
}

void GradientSums::Hold(int module, const Tensors& weights) {
  Held& held = modules_[module];
  held.weights = weights;
  held.sums.resize(weights.size());
  const std::vector<int>& replicas = conf_.stage_to_ranks[conf_.module_to_stage[module]];
  const int count = static_cast<int>(replicas.size());
  const int place =
      static_cast<int>(std::find(replicas.begin(), replicas.end(), rank_) - replicas.begin());
  held.replicated = count > 1;
  held.own = place < microbatches_ ? (microbatches_ - place + count - 1) / count : 0;
  for (size_t g = 0; g < groups_.contents.size(); ++g) {
    const SharedGroup& exchange = groups_.exchanges[g];
    bool gives = false;
    for (size_t h = 0; h < exchange.size(); ++h) {
      const std::vector<WeightSlice>& slices = groups_.contents[g].terms[exchange[h].term];
      if (exchange[h].rank != rank_ || slices[0].module != module) continue;
      gives = gives || exchange[h].gives;
      if (exchange[h].gets) held.gets.emplace_back(static_cast<int>(g), static_cast<int>(h));
    }
    if (gives) held.groups.push_back(static_cast<int>(g));
  }
}

at::ScalarType GradientSums::TypeOf(at::ScalarType weight) const {
  return wide_ && c10::elementSize(weight) == 2 ? at::kFloat : weight;
}

void GradientSums::AddNow(const Held& held, Tensors& sums, Tensors& found) const {
  sums.resize(found.size());
  for (size_t w = 0; w < found.size(); ++w) {
    at::Tensor gradient = std::move(found[w]);
    if (gradient.defined()) Accumulate(sums[w], gradient, TypeOf(held.weights[w].scalar_type()));
  }
}

void GradientSums::Add(int module, int microbatch, Tensors found) {
  Held& held = modules_.at(module);
  const int place = held.arrived / held.own * microbatches_ + microbatch;  // index within the step
  if (!exact_) {
    AddNow(held, held.sums, found);
  } else if (held.replicated || place != held.next) {
    AddNow(held, held.waiting[place], found);
  } else {
    AddNow(held, held.sums, found);
    ++held.next;
    while (!held.waiting.empty() && held.waiting.begin()->first == held.next) {
      AddNow(held, held.sums, held.waiting.begin()->second);
      held.waiting.erase(held.waiting.begin());
      ++held.next;
    }
  }
  if (++held.arrived == held.own * minibatches_) Announce(held);
}

// Announces groups whose modules on this rank have made all their contributions.
void GradientSums::Announce(const Held& held) {
  if (!ready_) return;
  for (int g : held.groups) {
    bool complete = true;
    for (const SharedHolder& holder : groups_.exchanges[g]) {
      if (holder.rank != rank_ || !holder.gives) continue;
      const Held& other = modules_.at(groups_.contents[g].terms[holder.term][0].module);
      complete = complete && other.arrived == other.own * minibatches_;
    }
    if (complete) ready_(g);
  }
}

bool GradientSums::Copies(int group, int holder) const {
  return !device_.is_cpu() && !on_device_[static_cast<size_t>(group)] &&
         !on_host_.count({group, holder});
}

Bundle GradientSums::Gradient(int group, int holder) {
  const GradientGroup& content = groups_.contents[group];
  const std::vector<WeightSlice>& slices = content.terms[groups_.exchanges[group][holder].term];
  const int module = slices[0].module, microbatch = content.microbatch[holder];
  Held& held = modules_.at(module);
  Tensors& from = microbatch < 0 ? held.sums : held.waiting[microbatch];
  from.resize(held.sums.size());
  at::Tensor& flags = flags_[{group, holder}];
  const bool fresh = !flags.defined();
  if (fresh) flags = at::empty({static_cast<int64_t>(slices.size())}, at::kBool);
  Tensors parts;
  for (size_t i = 0; i < slices.size(); ++i) {
    at::Tensor& whole = from[slices[i].weight];
    const std::tuple place(module, microbatch, slices[i].weight);
    if (!whole.defined()) {
      const at::Tensor& weight = held.weights[slices[i].weight];
      whole = at::zeros(weight.sizes(),
                        at::device(weight.device()).dtype(TypeOf(weight.scalar_type())));
      if (computing_) whole.record_stream(*computing_);  // where it will be used and freed
      filled_.insert(place);
    }
    if (fresh) flags.mutable_data_ptr<bool>()[i] = !filled_.count(place);
    parts.push_back(whole.view({-1}).narrow(0, slices[i].begin, slices[i].count));
  }
  if (!parts[0].is_cpu() && !on_device_[static_cast<size_t>(group)]) {
    Tensors& copies = on_host_[{group, holder}];
    if (copies.empty())
      for (const at::Tensor& part : parts) copies.push_back(OnHost(part));
    parts = copies;
  }
  parts.push_back(flags);
  return MakeBundle(std::move(parts));
}

Bundle GradientSums::Scratch(int group, const MemorySource& memory) const {
  const std::vector<WeightSlice>& slices = groups_.contents[group].terms[0];
  Tensors parts;
  for (const WeightSlice& slice : slices) {
    const WeightInfo& weight = manifest_.modules[slice.module].held[slice.weight];
    const at::ScalarType type = TypeOf(DtypeOf(weight.dtype));
    parts.push_back(on_device_[static_cast<size_t>(group)] && !device_.is_cpu()
                        ? EmptyOn(device_, {slice.count}, type)
                        : EmptyTensor({slice.count}, type, memory));
  }
  parts.push_back(at::empty({static_cast<int64_t>(slices.size())}, at::kBool));
  return MakeBundle(std::move(parts));
}

void GradientSums::AddTo(const Bundle& into, const Bundle& from) {
  at::NoGradGuard no_grad;
  const Tensors &to = TensorsOf(into), &more = TensorsOf(from);
  bool* have = to.back().mutable_data_ptr<bool>();
  const bool* give = more.back().const_data_ptr<bool>();
  for (size_t i = 0; i + 1 < to.size(); ++i) {
    if (!give[i]) continue;
    if (have[i])
      to[i].add_(more[i]);
    else
      to[i].copy_(more[i]);
    have[i] = true;
  }
}

void GradientSums::CopyTo(const Bundle& into, const Bundle& from) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < TensorsOf(into).size(); ++i) TensorsOf(into)[i].copy_(TensorsOf(from)[i]);
}

Tensors GradientSums::Take(int module) {
  Held& held = modules_.at(module);
  for (const auto& [group, holder] : held.gets) {
    auto found = flags_.find({group, holder});
    if (found == flags_.end()) continue;
    const GradientGroup& content = groups_.contents[group];
    const std::vector<WeightSlice>& slices = content.terms[groups_.exchanges[group][holder].term];
    const auto copies = on_host_.find({group, holder});
    for (size_t i = 0; i < slices.size(); ++i) {
      at::Tensor& sum = held.sums[slices[i].weight];
      if (!found->second.const_data_ptr<bool>()[i])
        sum.reset();
      else if (copies != on_host_.end())
        sum.view({-1}).narrow(0, slices[i].begin, slices[i].count).copy_(copies->second[i]);
    }
  }
  auto of_module = [&](const auto& one) {
    const auto& [group, holder] = one.first;
    return groups_.contents[group].terms[groups_.exchanges[group][holder].term][0].module == module;
  };
  std::erase_if(flags_, of_module);
  std::erase_if(on_host_, of_module);
  std::erase_if(filled_, [&](const auto& place) { return std::get<0>(place) == module; });
  held.waiting.clear();
  held.arrived = held.next = 0;
  Tensors sums(held.sums.size());
  std::swap(sums, held.sums);
  return sums;
}

}  // namespace pipewright
