#include "formats/job_changes.h"

#include "base/json.h"
#include "formats/json_differences.h"

namespace pipewright {

// Returns the keys of the job that losses or weights depend on.
static Json KeysThatCount(const std::string& job) {
  const Json all = ParseJson(job, "job");
  Json out = Json::object();
  for (const char* key : {"data", "loss", "optimizer", "microbatches", "microbatch_size",
                          "minibatch_size", "partial", "accumulate", "freeze", "loss_scale",
                          "threads", "reduce", "buffers", "matmul", "nan", "tf32"})
    if (all.contains(key)) out[key] = all[key];
  const Json rate = all.value(Json::json_pointer("/optimizer/lr_schedule"), Json());
  const std::string type = rate.is_object() ? rate.value("type", "constant") : "constant";
  if (type != "constant" && type != "step" && !rate.contains("steps") && all.contains("steps"))
    out["steps"] = all["steps"];  // the learning rate depends on them
  return out;
}

std::vector<std::string> ChangedJobKeys(const std::string& before, const std::string& now) {
  constexpr size_t kLongest = 100;  // longer values are not shown
  std::vector<Difference> differences;
  CompareJson(KeysThatCount(before), KeysThatCount(now), "", differences);
  std::vector<std::string> changes;
  for (const Difference& d : differences) {
    changes.push_back(Quote(d.where));
    if (d.first.size() + d.second.size() <= kLongest)
      changes.back() += " from " + (d.first.empty() ? "none" : d.first) + " to " +
                        (d.second.empty() ? "none" : d.second);
  }
  return changes;
}

}  // namespace pipewright
