#include "formats/json_differences.h"

#include <algorithm>
#include <map>

namespace pipewright {

// Returns the entries of an object or a list: by "name" if all have one, else by number.
static std::map<std::string, Json> EntriesOf(const Json& json) {
  std::map<std::string, Json> entries;
  if (json.is_object())
    for (const auto& [key, value] : json.items()) entries[key] = value;
  if (!json.is_array()) return entries;
  const bool named = std::all_of(json.begin(), json.end(), [](const Json& entry) {
    return entry.is_object() && entry.contains("name") && entry["name"].is_string();
  });
  for (size_t i = 0; i < json.size(); ++i)
    entries[named ? json[i]["name"].get<std::string>() : std::to_string(i)] = json[i];
  return entries;
}

void CompareJson(const Json& first, const Json& second, const std::string& where,
                 std::vector<Difference>& list) {
  if (first == second) return;
  // Short lists of numbers and names are read best as a whole.
  const bool deep = first.is_structured() && first.type() == second.type() &&
                    (first.is_object() || first.dump().size() + second.dump().size() > 120);
  if (!deep) {
    list.push_back({where, first.dump(), second.dump()});
    return;
  }
  const auto left = EntriesOf(first), right = EntriesOf(second);
  const size_t before = list.size();
  auto at = [&](const std::string& key) { return where.empty() ? key : where + "." + key; };
  for (const auto& [key, value] : left) {
    auto other = right.find(key);
    if (other == right.end())
      list.push_back({at(key), value.dump(), ""});
    else
      CompareJson(value, other->second, at(key), list);
  }
  for (const auto& [key, value] : right)
    if (!left.contains(key)) list.push_back({at(key), "", value.dump()});
  // Named entries may differ in their order. The order of keys means nothing.
  if (list.size() == before && first.is_array())
    list.push_back({where, "in another order", "in another order"});
}

}  // namespace pipewright
