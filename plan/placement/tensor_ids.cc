#include "plan/placement/tensor_ids.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace pipewright {

std::vector<std::vector<int>> TensorIds(const Manifest& manifest, bool training) {
  std::map<std::pair<int, std::string>, size_t> shared;  // holder -> group
  for (size_t g = 0; g < manifest.shared.size(); ++g)
    for (const SharedWeight::Holder& holder : manifest.shared[g].holders)
      shared[{holder.module, holder.name}] = g;
  std::map<std::string, std::string> kept;  // name -> the first name of its tensor
  for (const std::vector<std::string>& names : manifest.tied)
    for (const std::string& name : names) kept[name] = names[0];
  std::map<size_t, int> of_group;
  // Kind, name, dtype and shape.
  using Key = std::tuple<WeightKind, std::string, std::string, std::vector<int64_t>>;
  std::map<Key, int> of_name;
  std::vector<std::vector<int>> ids;
  int next = 0;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    std::vector<int>& of = ids.emplace_back();
    for (const WeightInfo& weight : manifest.modules[m].held) {
      int id = next;
      if (weight.kind == WeightKind::kParameter) {
        const auto group = shared.find({static_cast<int>(m), weight.name});
        if (group != shared.end() && !(training && weight.requires_grad))
          id = of_group.emplace(group->second, next).first->second;
      } else if (!training) {
        const auto name = kept.find(weight.name);
        const std::string& first = name == kept.end() ? weight.name : name->second;
        const Key key(weight.kind, first, weight.dtype, weight.shape);
        id = of_name.emplace(key, next).first->second;
      }
      next += id == next;
      of.push_back(id);
    }
  }
  return ids;
}

}  // namespace pipewright
