#include "formats/weights/shared_tensors.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/text.h"

namespace pipewright {

bool IsComplete(const TensorExtent& tensor) {
  return tensor.begin == 0 && tensor.end == tensor.storage_bytes &&
         tensor.bytes == tensor.storage_bytes;
}

static std::vector<std::vector<const TensorExtent*>> Groups(
    const std::vector<TensorExtent>& tensors) {
  std::vector<const TensorExtent*> order;
  for (const TensorExtent& tensor : tensors) order.push_back(&tensor);
  auto key = [](const TensorExtent* t) {
    return std::tie(t->storage, t->storage_bytes, t->begin, t->end, t->name);
  };
  std::sort(order.begin(), order.end(), [&](auto* a, auto* b) { return key(a) < key(b); });
  std::vector<std::vector<const TensorExtent*>> groups;
  uint64_t end = 0;  // the largest end in the group so far
  const TensorExtent* last = nullptr;
  for (const TensorExtent* tensor : order) {
    bool joins = last && !tensor->storage.empty() && last->storage == tensor->storage &&
                 last->storage_bytes == tensor->storage_bytes && tensor->begin < end &&
                 tensor->begin < tensor->end;
    if (joins) {
      groups.back().push_back(tensor);
      end = std::max(end, tensor->end);
    } else {
      groups.push_back({tensor});
      end = tensor->end;
    }
    last = tensor;
  }
  auto by_name = [](auto* a, auto* b) { return a->name < b->name; };
  for (auto& group : groups) std::sort(group.begin(), group.end(), by_name);
  std::sort(groups.begin(), groups.end(), [](auto& a, auto& b) { return a[0]->name < b[0]->name; });
  return groups;
}

std::vector<std::vector<std::string>> SharedGroups(const std::vector<TensorExtent>& tensors) {
  std::vector<std::vector<std::string>> names;
  for (const auto& group : Groups(tensors)) {
    names.emplace_back();
    for (const TensorExtent* tensor : group) names.back().push_back(tensor->name);
  }
  return names;
}

std::map<std::string, std::vector<std::string>> NamesToKeep(
    const std::vector<TensorExtent>& tensors, const std::vector<std::string>& preferred,
    const std::vector<std::string>& discard) {
  std::set<std::string> prefer(preferred.begin(), preferred.end());
  std::set<std::string> avoid(discard.begin(), discard.end());
  std::map<std::string, std::vector<std::string>> kept;
  for (const auto& group : Groups(tensors)) {
    if (group.size() < 2) continue;
    // Lower ranks are better. The group is sorted, so among equals the alphabetically first wins.
    const TensorExtent* best = nullptr;
    int best_rank = 3;
    std::vector<std::string> names;
    for (const TensorExtent* tensor : group) {
      names.push_back(tensor->name);
      if (!IsComplete(*tensor)) continue;
      int rank = prefer.count(tensor->name) ? 0 : avoid.count(tensor->name) ? 2 : 1;
      if (rank < best_rank) best = tensor, best_rank = rank;
    }
    if (!best)
      throw Error(Join(names, ", "), "these names share memory and none covers all of it",
                  "make copies of them, or name the whole buffer as well");
    names.erase(std::find(names.begin(), names.end(), best->name));
    kept[best->name] = names;
  }
  return kept;
}

void RecordDropped(const std::map<std::string, std::vector<std::string>>& kept,
                   std::map<std::string, std::string>& metadata) {
  for (const auto& [name, dropped] : kept)
    for (const std::string& other : dropped) metadata.emplace(other, name);
}

LoadReport MatchNames(const std::vector<TensorExtent>& model,
                      const std::vector<std::string>& file) {
  std::set<std::string> in_file(file.begin(), file.end());
  std::set<std::string> missing, unexpected = in_file;
  for (const TensorExtent& tensor : model)
    if (!unexpected.erase(tensor.name)) missing.insert(tensor.name);
  for (const auto& [name, dropped] : NamesToKeep(model, file))
    for (const std::string& other : dropped)
      if (!missing.erase(other)) unexpected.insert(other);
  return {{missing.begin(), missing.end()}, {unexpected.begin(), unexpected.end()}};
}

}  // namespace pipewright
