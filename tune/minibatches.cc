#include "tune/minibatches.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/data/open.h"
#include "formats/manifest.h"
#include "tune/allowed.h"
#include "tune/own_run.h"

namespace pipewright {

// Returns the number of minibatches in an epoch of the data. `where` is the job's key of the data.
static int64_t MinibatchesIn(const DataJob& data, const Job& job, const std::string& where) {
  try {
    return OpenSource(data)->samples() / SamplesOf(job);
  } catch (const std::exception& error) {
    throw Error(
        job.path + ": " + where,
        std::string("cannot be read, and --merge-minibatches needs the number of samples: ") +
            error.what());
  }
}

// Returns why steps would have other samples if their minibatches were one, or "".
static std::string WhyOtherSamples(const Job& job) {
  const auto why = [&](const DataJob& data, const std::string& where) -> std::string {
    const int64_t minibatches = MinibatchesIn(data, job, where);
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

// Returns true if replicas of a stage would get other microbatches.
static bool ChangesReplicas(const TuneRequest& request, const Job& job) {
  const Conf conf = OwnRun(request, job, ReadManifest(request.package)).conf;
  // Of each minibatch, replica i of r gets the microbatches i, i + r, i + 2 r ...
  return std::any_of(
      conf.stage_to_ranks.begin(), conf.stage_to_ranks.end(),
      [&](const auto& ranks) { return job.microbatches % static_cast<int>(ranks.size()) != 0; });
}

// Returns why one minibatch would have other results, or "".
static std::string WhyOtherResults(const TuneRequest& request,
                                   const std::vector<WrittenBuffer>& written, const Job& job) {
  if (!job.plan.empty() || !job.costs.empty())
    return "the job's plan or costs are for a single minibatch";
  if (job.partial) return "with \"partial\", the last step of an epoch depends on them";
  if (SamplesOf(job) % job.microbatches != 0) return "their microbatches differ in size";
  if (std::string why = WhyOtherSamples(job); !why.empty()) return why;
  const std::optional<WrittenBuffer> buffer = BufferOfReplicas(written, job);
  if (buffer && ChangesReplicas(request, job))
    return "forward writes to " + buffer->name + ", and replicas would get other microbatches";
  return "";
}

std::string MergeMinibatches(const TuneRequest& request, const std::vector<WrittenBuffer>& written,
                             Job& job) {
  if (job.accumulate == 1) return "--merge-minibatches changes nothing: a step has one minibatch";
  if (IsAsynchronous(job))
    throw Error(job.path + ": schedule", job.schedule + " does not support \"accumulate\"",
                "use more microbatches, or another schedule");
  if (const std::string why = WhyOtherResults(request, written, job); !why.empty())
    throw Error(job.path + ": accumulate",
                "the " + std::to_string(job.accumulate) +
                    " minibatches of a step cannot be merged without changing results: " + why,
                "leave out --merge-minibatches, or change the job so that results are the same");
  const std::string given = "the " + std::to_string(job.accumulate) + " minibatches of " +
                            Counted(SamplesOf(job), "sample") + " that a step accumulates";
  Json text = ParseJson(job.text, job.path);
  text.erase("accumulate");
  text["microbatches"] = job.accumulate * job.microbatches;
  if (job.minibatch_size > 0) text["minibatch_size"] = job.accumulate * job.minibatch_size;
  job = ParseJob(text, job.path, job.path);
  job.text = FormatJson(text);
  return given + " are merged into one of " + std::to_string(SamplesOf(job)) +
         " in all candidates, including the job as given";
}

std::string MinibatchesStay(const TuneRequest& request, const Job& job) {
  std::string note =
      "times are per minibatch: a step accumulates " + std::to_string(job.accumulate);
  if (request.options == "--" && !request.exact)
    note +=
        " (--merge-minibatches merges them into one, which may be faster, and take more memory)";
  return note;
}

}  // namespace pipewright
