#include "tune/job/minibatches.h"

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/data/open.h"
#include "plan/schedules/table.h"
#include "tune/job/allowed.h"

namespace pipewright {

// Returns why steps would have other samples if their minibatches were one, or "".
static std::string WhyOtherSamples(const Job& job) {
  const auto why = [&](const DataJob& data, const std::string& where) -> std::string {
    int64_t minibatches = 0;  // in an epoch
    try {
      minibatches = OpenSource(data)->samples() / SamplesOf(job);
    } catch (const std::exception& error) {
      const std::string what = error.what();
      return "the number of samples in " + where +
             " is not known: " + what.substr(0, what.find('\n'));
    }
    if (minibatches > 0 && minibatches % job.accumulate == 0) return "";
    const std::string wanted = std::to_string(job.accumulate);
    return "an epoch of " + where + " has " + Counted(minibatches, "minibatch") +
           ", and should have " + wanted + " or a multiple of " + wanted;
  };
  if (const std::string data = why(job.data, "\"data\""); !data.empty()) return data;
  if (job.validation.every == 0) return "";
  if (job.validation.steps > 0) return "\"steps\" of the validation are minibatches";
  return why(job.validation.data, "the validation's \"data\"");
}

std::string WhyNotMerged(const Job& job) {
  const ScheduleKind* kind = FindSchedule(job.schedule);
  if (!job.plan.empty() || !job.costs.empty() || !kind || kind->searched || kind->asynchronous)
    return "the job's plan, costs or schedule order a single one";
  if (job.partial) return "with \"partial\", the last step of an epoch depends on them";
  if (SamplesOf(job) % job.microbatches != 0) return "their microbatches differ in size";
  if (int64_t{job.accumulate} * job.microbatches > kMostMicrobatches)
    return "together, they have more than " + std::to_string(kMostMicrobatches) + " microbatches";
  return WhyOtherSamples(job);
}

std::string MergeMinibatches(const TuneRequest& request, Job& job) {
  const std::string count = std::to_string(job.accumulate),
                    why = request.exact ? "--exact keeps them" : WhyNotMerged(job);
  if (!why.empty())
    return "times are per minibatch, and the " + count +
           " that a step accumulates are not merged: " + why;
  const std::string given =
      "the " + count + " minibatches of " + Counted(SamplesOf(job), "sample") + " in a step";
  Json text = ParseJson(job.text, job.path);
  text.erase("accumulate");
  text["microbatches"] = job.accumulate * job.microbatches;
  if (job.minibatch_size > 0) text["minibatch_size"] = job.accumulate * job.minibatch_size;
  job = ParseJob(text, job.path, job.path);
  job.text = FormatJson(text);
  return given + " are merged into one of " + std::to_string(SamplesOf(job)) +
         ", except in the run as given";
}

}  // namespace pipewright
