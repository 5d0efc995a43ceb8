#include "formats/profile/merge.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/dtype.h"

namespace pipewright {

void AppendModule(Profile& profile, const Profile& module) {
  int first = static_cast<int>(profile.nodes.size());
  profile.nodes.insert(profile.nodes.end(), module.nodes.begin(), module.nodes.end());
  std::map<std::string, size_t> known;
  std::vector<int> place;  // by value of `module`
  for (size_t v = 0; v < profile.values.size(); ++v) known.emplace(profile.values[v].name, v);
  for (ProfileValue value : module.values) {
    for (int& consumer : value.consumers) consumer += first;
    auto found = known.find(value.name);
    if (value.producer < 0 && found != known.end()) {
      place.push_back(static_cast<int>(found->second));
      auto& consumers = profile.values[found->second].consumers;
      consumers.insert(consumers.end(), value.consumers.begin(), value.consumers.end());
      continue;
    }
    if (value.producer >= 0) value.producer += first;
    place.push_back(static_cast<int>(profile.values.size()));
    profile.values.push_back(value);
  }
  for (size_t i = static_cast<size_t>(first); i < profile.nodes.size(); ++i)
    for (auto* held : {&profile.nodes[i].held, &profile.nodes[i].held_for_weight}) {
      for (int& value : *held) value = place[static_cast<size_t>(value)];
      std::sort(held->begin(), held->end());
    }
}

static double BytesOf(const WeightInfo& weight) {
  const Dtype* dtype = FindDtype(weight.dtype);
  double bytes = dtype ? dtype->bits / 8.0 : 4;
  for (int64_t size : weight.shape) bytes *= static_cast<double>(size);
  return bytes;
}

void ShareWeights(Profile& profile, const Manifest& manifest) {
  std::map<std::pair<int, std::string>, std::vector<int>> holders;  // (module, weight) -> nodes
  for (size_t i = 0; i < profile.nodes.size(); ++i)
    for (const std::string& weight : profile.nodes[i].weights)
      holders[{profile.nodes[i].module, weight}].push_back(static_cast<int>(i));
  std::set<std::pair<int, std::string>> grouped;
  profile.shared.clear();
  auto bytes = [&](int module, const std::string& name) {
    for (const WeightInfo& weight : manifest.modules[module].held)
      if (weight.name == name && weight.kind == WeightKind::kParameter && weight.requires_grad)
        return BytesOf(weight);
    return 0.0;
  };
  for (const SharedWeight& weight : manifest.shared) {
    ProfileShared shared;
    for (const SharedWeight::Holder& holder : weight.holders) {
      grouped.insert({holder.module, holder.name});
      for (int node : holders[{holder.module, holder.name}]) shared.nodes.push_back(node);
      shared.bytes = bytes(holder.module, holder.name);
    }
    std::sort(shared.nodes.begin(), shared.nodes.end());
    if (Trained(manifest, weight) && shared.nodes.size() > 1) profile.shared.push_back(shared);
  }
  for (const auto& [weight, nodes] : holders)
    if (nodes.size() > 1 && !grouped.count(weight) && bytes(weight.first, weight.second) > 0)
      profile.shared.push_back({nodes, bytes(weight.first, weight.second)});
}

}  // namespace pipewright
