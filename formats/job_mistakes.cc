#include "formats/job_mistakes.h"

#include <algorithm>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/json_comments.h"
#include "base/text.h"
#include "formats/job.h"

namespace pipewright {

namespace {

using KeyPath = std::vector<std::string>;  // indices in lists are decimal

const Json* Step(const Json& at, const std::string& key) {
  if (at.is_object()) return at.contains(key) ? &at[key] : nullptr;
  const bool number = !key.empty() && key.find_first_not_of("0123456789") == std::string::npos;
  if (!at.is_array() || !number || key.size() > 9 || std::stoul(key) >= at.size()) return nullptr;
  return &at[std::stoul(key)];
}

// Returns the existing part of the place that the error names, such as "loss[0].weight".
KeyPath PlaceOf(std::string text, const Json& job) {
  text = text.substr(0, text.find(": "));
  for (char& c : text)
    if (c == '[') c = '.';
  std::erase(text, ']');
  KeyPath place;
  const Json* at = &job;
  for (const std::string& key : Split(text, '.')) {
    at = Step(*at, key);
    if (!at) break;
    place.push_back(key);
  }
  return place;
}

Json& Parent(Json& job, const KeyPath& place) {
  Json* at = &job;
  for (size_t i = 0; i + 1 < place.size(); ++i)
    at = at->is_array() ? &(*at)[std::stoul(place[i])] : &(*at)[place[i]];
  return *at;
}

// Replaces the value of a required key by a valid one; erases any other key.
void Replace(Json& job, const std::string& key) {
  static const std::vector<std::pair<std::string, Json>> stand_ins = {
      {"data", {{"plugin", "none"}, {"inputs", {{"x", "x"}}}, {"target", "y"}}},
      {"loss", "cross_entropy"},
      {"optimizer", {{"type", "sgd"}, {"lr", 0.1}}},
      {"microbatches", 1},
      {"microbatch_size", 1}};
  job.erase(key);
  if (key == "minibatch_size") job["microbatch_size"] = 1;
  if (key == "schedule" || key == "costs") job.erase("memory");  // it needs both
  for (const auto& [needed, value] : stand_ins)
    if (needed == key) job[key] = value;
}

// Returns the key of the object that the text calls unknown; "" if there is none.
std::string UnknownKey(const Json& object, const std::string& text) {
  if (object.is_object())
    for (const auto& [key, value] : object.items())
      if (text.find("unknown key \"" + key + "\"") != std::string::npos) return key;
  return "";
}

const Json& At(const Json& job, const KeyPath& place) {
  const Json* at = &job;
  for (const std::string& key : place) at = Step(*at, key);
  return *at;
}

bool Has(const Json& job, const KeyPath& place) {
  const Json* at = &job;
  for (const std::string& key : place)
    if (at) at = Step(*at, key);
  return at != nullptr;
}

// Returns the key that the text has between `before` and the next quotation mark.
std::string KeyAfter(const std::string& before, const std::string& text) {
  const size_t at = text.find(before);
  if (at == std::string::npos) return "";
  const size_t begin = at + before.size();
  return text.substr(begin, text.find('"', begin) - begin);
}

bool BeginsWith(const KeyPath& path, const KeyPath& prefix) {
  return prefix.size() <= path.size() && std::equal(prefix.begin(), prefix.end(), path.begin());
}

}  // namespace

std::vector<JobMistake> JobMistakes(const std::string& path,
                                    const std::vector<std::string>& changes) {
  const std::string name = JobName(path, changes);
  std::vector<JobMistake> mistakes;
  std::string source;
  Json job;
  try {
    ReadJob(path, changes);
    return {};
  } catch (const Error& e) {
    try {
      source = WithoutComments(ReadFile(path));
      job = ParseJson(source, path);
    } catch (const Error&) {
      return {{e.what()}};
    }
    if (!job.is_object()) return {{e.what()}};
  }
  const Json given = job;
  std::vector<KeyPath> changed;
  for (const std::string& change : changes) try {
      ChangeJob(job, change);
      changed.push_back(Split(change.substr(0, change.find('=')), '.'));
    } catch (const Error& e) {
      mistakes.push_back({e.what()});
    }
  std::set<KeyPath> erased;
  // Each turn erases a value or replaces a top-level one.
  for (int turn = 0; turn < 1000; ++turn) try {
      ParseJob(job, path, name);
      return mistakes;
    } catch (const Error& e) {
      const std::string text = e.what();
      std::string rest = text.substr(std::min(text.size(), name.size() + 2));
      KeyPath place = PlaceOf(rest, job);
      const bool follows = std::any_of(erased.begin(), erased.end(), [&](const KeyPath& one) {
        return BeginsWith(one, place) && !place.empty();
      });
      const std::string unknown = UnknownKey(At(job, place), rest);
      const std::string missing = KeyAfter("the key \"", rest);
      if (!unknown.empty()) place.push_back(unknown);
      if (!follows || !unknown.empty()) {
        JobMistake mistake{text};
        // A change may also make the objects around its value.
        const bool of_change = std::any_of(changed.begin(), changed.end(), [&](const KeyPath& one) {
          return BeginsWith(place, one) || (BeginsWith(one, place) && !Has(given, place));
        });
        if (!of_change) {
          const std::string at = JsonPosition(source, place);
          mistake.line = std::atoi(at.c_str());
          mistake.column = std::atoi(at.substr(at.find(':') + 1).c_str());
        }
        mistakes.push_back(mistake);
      }
      if (!unknown.empty()) {
        Parent(job, place).erase(place.back());
      } else if (place.empty() && !missing.empty()) {
        Replace(job, missing);
      } else if (place.empty()) {
        return mistakes;  // the last one is of the whole job: no value can be left out
      } else if (follows || place.size() == 1 || Parent(job, place).is_array()) {
        // Erasing one entry of a list would renumber the others.
        erased.insert({place[0]});
        Replace(job, place[0]);
      } else {
        erased.insert(place);
        Parent(job, place).erase(place.back());
      }
    }
  return mistakes;
}

}  // namespace pipewright
