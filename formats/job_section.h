// Typed, range-checked getters for objects of job.json, whose errors name the key.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"

namespace pipewright {

// Numbers of a run become float32, where larger ones would be infinite.
constexpr double kAnyNumber = 3.4e38;

// An absent key leaves `out` unchanged.
struct Section {
  const Json& in;
  std::string where;  // "job.json: optimizer", or "job.json:" for top-level keys

  std::string Key(const std::string& key) const {
    return where + (where.ends_with(':') ? " " : ".") + key;
  }

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

  // Reads a whole number from `least` to `most`; an absent one is not checked.
  template <typename T>
  void AtLeast(const char* key, T least, T& out, T most = std::numeric_limits<T>::max()) const {
    if (!in.contains(key)) return;
    int64_t wide = 0;
    Get(key, wide);
    const bool huge = in[key].is_number_unsigned() && wide < 0;  // more than an int64 holds
    if (!huge && wide < static_cast<int64_t>(least))
      throw Error(Key(key), in[key].dump() + " is out of range: at least " + std::to_string(least));
    if (huge || wide > static_cast<int64_t>(most))
      throw Error(Key(key), in[key].dump() + " is out of range: at most " + std::to_string(most));
    out = static_cast<T>(wide);
  }

  void Range(const char* key, double low, double below, double& out) const {
    Get(key, out);
    if (!(out >= low))
      throw Error(Key(key), Json(out).dump() + " is out of range: at least " + Json(low).dump());
    if (!(out < below))
      throw Error(Key(key), Json(out).dump() + " is out of range: below " + Json(below).dump() +
                                (below == kAnyNumber ? ", the most that a float32 holds" : ""));
  }

  // Reads a string or a list of strings.
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
