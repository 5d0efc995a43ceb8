// Reading objects of job.json: typed, ranged getters whose errors name the key.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "plan/error.h"
#include "plan/json.h"
#include "plan/text.h"

namespace pipewright {

constexpr double kAnyNumber = 1e308;

// A key that is absent leaves `out` as it is.
struct Section {
  const Json& in;
  std::string where;  // "job.json: optimizer"

  std::string Key(const char* key) const { return where + "." + key; }

  template <typename T>
  void Get(const char* key, T& out) const {
    auto found = in.find(key);
    if (found == in.end()) return;
    bool right = true;
    const char* kind = "";
    if constexpr (std::is_same_v<T, bool>)
      right = found->is_boolean(), kind = "true or false";
    else if constexpr (std::is_same_v<T, std::string>)
      right = found->is_string(), kind = "a string";
    else if constexpr (std::is_floating_point_v<T>)
      right = found->is_number(), kind = "a number";
    else
      right = found->is_number_integer(), kind = "a whole number";
    if (!right) throw Error(Key(key), std::string(kind) + " is expected, not " + found->dump());
    out = found->template get<T>();
  }

  // A whole number, `least` or more; absent ones are not looked at.
  template <typename T>
  void AtLeast(const char* key, T least, T& out) const {
    if (!in.contains(key)) return;
    int64_t wide = 0;
    Get(key, wide);
    if (wide < static_cast<int64_t>(least) || static_cast<int64_t>(static_cast<T>(wide)) != wide)
      throw Error(Key(key),
                  std::to_string(wide) + " is out of range: at least " + std::to_string(least));
    out = static_cast<T>(wide);
  }

  void Range(const char* key, double low, double below, double& out) const {
    Get(key, out);
    if (!(out >= low && out < below))
      throw Error(Key(key), Json(out).dump() + " is out of range: at least " + Json(low).dump() +
                                (below < 1e300 ? ", below " + Json(below).dump() : ""));
  }

  // A string or a list of strings.
  std::vector<std::string> Strings(const char* key) const {
    auto found = in.find(key);
    if (found == in.end()) return {};
    std::vector<std::string> strings;
    bool right = found->is_string() || found->is_array();
    if (found->is_string()) strings.push_back(found->get<std::string>());
    if (found->is_array())
      for (const Json& entry : *found) {
        right = right && entry.is_string();
        if (right) strings.push_back(entry.get<std::string>());
      }
    if (!right)
      throw Error(Key(key), "a string or a list of strings is expected, not " + found->dump());
    return strings;
  }
};

template <typename T>
T Choose(const Json& value, const std::vector<std::pair<std::string, T>>& choices,
         const std::string& where) {
  std::vector<std::string> names;
  for (const auto& [name, choice] : choices) {
    if (value == name) return choice;
    names.push_back(name);
  }
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  throw Error(where, "\"" + text + "\" is not known" + Suggest(text, names),
              "known: " + Join(names, ", "));
}

}  // namespace pipewright
