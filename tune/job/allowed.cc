#include "tune/job/allowed.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <regex>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "plan/run/run_plan.h"
#include "tune/job/input_job.h"
#include "tune/job/own_run.h"

namespace pipewright {

namespace {

// Returns the buffers with counts of steps last: others say more about the model.
std::vector<WrittenBuffer> CountsLast(std::vector<WrittenBuffer> written) {
  std::stable_partition(written.begin(), written.end(), [](const WrittenBuffer& buffer) {
    return !buffer.name.ends_with("num_batches_tracked");
  });
  return written;
}

// Returns true if the code normalizes over the samples of its inputs. In evaluation, with running
// statistics and training=False (the sixth argument), it does not.
bool NormalizesOverSamples(const std::string& code) {
  static const std::regex call(R"(batch_norm(_legit)?\(([^()]*)\)?)");
  for (std::sregex_iterator at(code.begin(), code.end(), call), end; at != end; ++at) {
    const std::vector<std::string> arguments = Split((*at)[2].str(), ',');
    if (arguments.size() < 6 || arguments[5].find("False") == std::string::npos) return true;
  }
  return false;
}

// Returns why results depend on the size of microbatches, or "" if they do not.
std::string WhyMicrobatchStays(const TuneRequest& request, const Manifest& manifest,
                               const std::vector<WrittenBuffer>& written, const Job& job) {
  if (job.partial) return "with \"partial\", the samples of the last step of an epoch depend on it";
  if (!job.data.length.empty())
    return "with \"length\", samples are padded to the longest of their microbatch";
  if (!written.empty())
    return "forward writes to " + CountsLast(written)[0].name + ", which depends on it";
  // Without running statistics, it writes to no buffer.
  for (const ModuleInfo& module : manifest.modules) {
    const std::string code = ReadFile(request.package + "/" + module.code);
    if (NormalizesOverSamples(code))
      return module.name + " normalizes over the samples of a microbatch";
  }
  for (const LossJob& loss : job.losses)
    if (loss.kind == LossJob::kOutput)
      return "the model computes its loss, which need not be a mean over samples";
  return "";
}

// Returns why replicas of a stage would compute something else than the stage on one rank, by more
// than rounding, or "" if they do not.
std::string WhyNoReplicas(const std::vector<WrittenBuffer>& written, const Job& job) {
  const std::optional<WrittenBuffer> buffer = BufferOfReplicas(written, job);
  if (!buffer) return "";
  return "forward writes to " + buffer->name +
         ", and each replica would keep that of its own microbatches" +
         (buffer->merges ? " (\"buffers\": \"merge\" in the job may allow them)" : "");
}

// Returns the plan with the package's conf, also if it is for more ranks than there are, or that of
// OwnRun if the conf does not fit the job.
Plan PlanAsGiven(const TuneRequest& request, const Job& job, const Manifest& manifest) {
  try {
    return MakeRunPlan(request.package, "", job, 0, false).plan;
  } catch (const Error&) {
    return OwnRun(request, job, manifest).plan;
  }
}

// Returns the order of the stages in the job's own run.
StageOrder OwnOrder(const TuneRequest& request, const Job& job, const Manifest& manifest) {
  const std::optional<StageOrder> order = OrderOfStages(PlanAsGiven(request, job, manifest));
  if (!order)
    throw Error("--exact",
                "the stages of " + job.plan +
                    " add gradients in different orders, so that results depend on the cut",
                "leave out --exact, or tune a job with another schedule");
  return *order;
}

// Returns true if a stage runs on one rank, which adds gradients in the order of the microbatches.
bool IsUsual(const StageOrder& order) {
  return order.size() == 1 && std::is_sorted(order[0].additions.begin(), order[0].additions.end());
}

}  // namespace

std::optional<WrittenBuffer> BufferOfReplicas(const std::vector<WrittenBuffer>& written,
                                              const Job& job) {
  for (const WrittenBuffer& buffer : CountsLast(written))
    if (!job.merge_buffers || !buffer.merges) return buffer;
  return std::nullopt;
}

int64_t SamplesOf(const Job& job) {
  return job.minibatch_size > 0 ? job.minibatch_size : job.microbatches * job.microbatch_size;
}

std::pair<int64_t, int64_t> SamplesAllowed(const Manifest& manifest, const ValueInfo& input) {
  std::pair<int64_t, int64_t> range = {1, int64_t{1} << 40};
  if (input.shape.empty()) return range;
  const std::string& first = input.shape[0];
  if (auto symbol = manifest.symbols.find(first); symbol != manifest.symbols.end())
    range = {std::max(range.first, symbol->second.first),
             std::min(range.second, symbol->second.second)};
  else if (first.find_first_not_of("0123456789") == std::string::npos)
    range = {std::stoll(first), std::stoll(first)};
  return range;
}

std::pair<int64_t, int64_t> SamplesAllowed(const Manifest& manifest) {
  std::pair<int64_t, int64_t> range = {1, int64_t{1} << 40};
  for (int input : manifest.inputs) {
    const auto [least, most] =
        SamplesAllowed(manifest, manifest.values[static_cast<size_t>(input)]);
    range = {std::max(range.first, least), std::min(range.second, most)};
  }
  return range;
}

std::string MicrobatchStays(const Job& job, const std::string& why) {
  return "the microbatch stays at " + Counted(job.microbatch_size, "sample") + ": " + why +
         " (`pipewright tune --change-microbatch` changes it anyway)";
}

std::set<int64_t> MicrobatchSizes(const TuneRequest& request, const Manifest& manifest,
                                  const std::vector<WrittenBuffer>& written, const Job& job,
                                  std::vector<std::string>& notes) {
  std::set<int64_t> sizes = {job.microbatch_size};
  std::string why = WhyMicrobatchStays(request, manifest, written, job);
  if (request.exact) why = "--exact keeps the results bitwise identical";
  if (!why.empty() && !request.change_microbatch) {
    notes.push_back(request.exact ? "the microbatch stays at " +
                                        Counted(job.microbatch_size, "sample") + ": " + why
                                  : MicrobatchStays(job, why));
    return sizes;
  }
  auto [least, most] = SamplesAllowed(manifest);
  if (least == most) {
    if (job.microbatch_size != least)
      throw Error(job.path,
                  "its microbatches have " + Counted(job.microbatch_size, "sample") +
                      ", and the model was exported for " + std::to_string(least),
                  "export it with a dynamic dimension, or give microbatches of that size");
    notes.push_back("the microbatch stays at " + Counted(least, "sample") +
                    ": the model was exported for it (export it with a dynamic dimension)");
    return sizes;
  }
  least = std::max(least, (SamplesOf(job) + kMostMicrobatches - 1) / kMostMicrobatches);
  if (request.most_samples > 0) most = std::min(most, request.most_samples);
  sizes.merge(SizesOfRows(SamplesOf(job), least, most));
  return sizes;
}

void LimitCandidates(const TuneRequest& request, const std::vector<WrittenBuffer>& written,
                     const Job& job, TuneProblem& problem, std::vector<std::string>& notes) {
  if (IsAsynchronous(job))
    throw Error(job.path,
                "the steps of " + job.schedule + " overlap, and no other schedule has its results",
                "name a schedule without such steps, such as 1f1b");
  if (!request.exact) {
    const std::string why = WhyNoReplicas(written, job);
    problem.replicas = why.empty();
    if (!why.empty()) notes.push_back("schedules with replicas are left out: " + why);
    return;
  }
  // Gradients are added in the order of the microbatches, whatever the schedule.
  if (job.exact_reduce && written.empty()) return;
  problem.order = OwnOrder(request, job, problem.manifest);
  if (!IsUsual(*problem.order))
    notes.push_back("--exact leaves out all schedules that add gradients in another order than " +
                    (job.plan.empty() ? job.schedule : job.plan));
}

void RefuseBodyOverride() {
  const char* body = std::getenv("PIPEWRIGHT_BODY");
  if (body && *body)
    throw Error(std::string("PIPEWRIGHT_BODY=") + body,
                "overrides how modules compute, which tune chooses",
                "unset it; to choose a body, set \"body\" in the job");
}

}  // namespace pipewright
