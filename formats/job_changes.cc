#include "formats/job_changes.h"

#include "base/json.h"

namespace pipewright {

static constexpr const char* kThatCount[] = {
    "data",    "loss",       "optimizer", "microbatches", "microbatch_size", "minibatch_size",
    "partial", "accumulate", "freeze",    "loss_scale",   "threads",         "reduce",
    "buffers", "matmul",     "nan"};

// Returns "" where both cannot be shown in a few words.
static std::string FromTo(const Json* before, const Json* now) {
  constexpr size_t kLongest = 100;
  const std::string from = before ? before->dump() : "none", to = now ? now->dump() : "none";
  return from.size() + to.size() > kLongest ? "" : " from " + from + " to " + to;
}

static const Json* Find(const Json& object, const std::string& key) {
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &*at;
}

static void Compare(const Json* before, const Json* now, const std::string& name,
                    std::vector<std::string>& changes) {
  if (before && now && before->is_object() && now->is_object()) {
    for (const auto& [key, value] : before->items())
      Compare(&value, Find(*now, key), name + "." + key, changes);
    for (const auto& [key, value] : now->items())
      if (!before->contains(key)) Compare(nullptr, &value, name + "." + key, changes);
  } else if (before && now ? *before != *now : before != now) {
    changes.push_back(Quote(name) + FromTo(before, now));
  }
}

std::vector<std::string> JobChanges(const std::string& before, const std::string& now) {
  const Json old_job = ParseJson(before, "job"), new_job = ParseJson(now, "job");
  std::vector<std::string> changes;
  for (const char* key : kThatCount) Compare(Find(old_job, key), Find(new_job, key), key, changes);
  return changes;
}

}  // namespace pipewright
