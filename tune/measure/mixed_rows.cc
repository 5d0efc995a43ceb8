#include "tune/measure/mixed_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <regex>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "formats/conf.h"
#include "plan/schedules/table.h"
#include "tune/job/allowed.h"
#include "tune/job/changed_job.h"
#include "tune/measure/kept.h"
#include "tune/measure/outputs.h"
#include "tune/measure/profiles.h"
#include "tune/measure/runs.h"

namespace pipewright {

namespace {

// Returns the size next to the job's own: a smaller one if there is any, as it takes less memory.
int64_t OtherSize(const std::set<int64_t>& sizes, int64_t own) {
  const auto at = sizes.find(own);
  return at != sizes.begin() ? *std::prev(at) : *std::next(at);
}

// Returns true if the forward of training draws random numbers.
bool Draws(const TuneRequest& request, const Manifest& manifest) {
  static const std::regex random(
      R"(pipewright\.(\w*dropout|generator|scaled_dot_product_attention)\()");
  return std::any_of(
      manifest.modules.begin(), manifest.modules.end(), [&](const ModuleInfo& module) {
        return std::regex_search(ReadFile(request.package + "/" + module.code), random);
      });
}

// Returns what tells that the model has other weights than before.
std::string WeightsText(const TuneRequest& request, const Manifest& manifest) {
  return request.model.empty() ? StampsOfWeights(request.package, manifest)
                               : StampsOf({request.model});  // the package is made anew
}

// Returns what tells that the job trains on other data than before, or otherwise.
std::string TrainingText(const Job& job) {
  const Json text = ParseJson(job.text, job.path);
  std::string all;
  for (const char* key : {"data", "loss", "optimizer", "seed", "loss_scale"})
    all += text.value(key, Json()).dump();
  return all + StampsOfData(job);
}

// Tells how the losses are computed.
struct Trial {
  int64_t samples = 0;     // two of the larger microbatches, or all of a step
  bool evaluates = false;  // since in training, forward draws random numbers
  bool narrow = false;     // some of the model is computed with 16-bit numbers
};

// Files of a trial.
std::string Weights(const TuneRequest& request) {
  return request.scratch + "/rows_weights.safetensors";
}
std::string Gradients(const TuneRequest& request, int64_t size) {
  return request.scratch + "/rows_gradients_" + std::to_string(size) + ".safetensors";
}

// Returns the loss with microbatches of this size; none if the budget is over. The first one also
// trains the weights for evaluation.
std::optional<double> LossWith(const TuneRequest& request, const Job& job, const Trial& trial,
                               int64_t size, const Conf& conf, const TuneBudget& budget) {
  const std::string job_file = request.scratch + "/rows_job.json",
                    conf_file = request.scratch + "/rows_conf.json",
                    metrics = request.scratch + "/rows_metrics.jsonl";
  const int count = size == job.microbatch_size && trial.samples == SamplesOf(job)
                        ? job.microbatches
                        : static_cast<int>((trial.samples + size - 1) / size);
  Json text = ParseJson(ChangedJob(ParseJson(job.text, job.path), job.path, job_file,
                                   {kDefaultSchedule, count, trial.samples}),
                        job.path);
  KeepOnlySteps(text);
  if (text.contains("optimizer"))
    text["optimizer"].erase("lr_schedule");  // in a warm-up, a step changes too little to tell
  // Steps with the usual first scale, 65536, may overflow, and without any, gradients underflow.
  if (text.contains("loss_scale") && text["loss_scale"].is_object()) text["loss_scale"] = 1024;
  WriteFile(job_file, FormatJson(text));
  WriteFile(conf_file, WriteConf(conf));
  const int ranks = CountRanks(conf);
  const TuneRun run = {
      request.package, job_file, conf_file, ranks, RunsInProcess(request, ranks), 1, request.start};
  if (!trial.evaluates) {
    std::vector<std::string> options;
    if (trial.narrow) options = {"--save-gradients", Gradients(request, size)};
    if (!TrainSteps(run, 2, metrics, options, budget)) return std::nullopt;
    return LossOfStep(metrics, 2);
  }
  const std::string weights = Weights(request);
  if (size == job.microbatch_size && !TrainSteps(run, 1, metrics, {"--save", weights}, budget))
    return std::nullopt;
  return LossOfEvaluation(run, weights, metrics, budget);
}

// Returns the losses with both sizes, on one rank or, where that fails, on all that there are; null
// if the budget is over. Throws Error if neither runs. Ranks on other machines are not here.
Json LossesWith(const TuneRequest& request, const Job& job, const Trial& trial, int64_t other,
                int modules, const TuneBudget& budget) {
  const int most = request.machines.empty() ? std::min(request.ranks, modules) : 1;
  for (const int ranks : {1, most}) {
    try {
      const Conf conf = GroupModules(modules, ranks);
      const std::optional<double> first = LossWith(request, job, trial, job.microbatch_size, conf,
                                                   budget),
                                  second = LossWith(request, job, trial, other, conf, budget);
      Json losses;
      if (first && second) losses = {{"own", *first}, {"other", *second}};
      if (first && second && trial.narrow && !trial.evaluates)
        losses["gradients"] =
            DifferenceOf(Gradients(request, other), Gradients(request, job.microbatch_size));
      for (const std::string& file :
           {Weights(request), Gradients(request, other), Gradients(request, job.microbatch_size)})
        std::filesystem::remove(file);  // they may be large
      return losses;
    } catch (const Error&) {
      if (ranks == most) throw;
    }
  }
  return nullptr;
}

// Returns true for what LossesWith returns, if the budget was not over. NaN is null in a file.
bool IsVerdict(const Json& losses) {
  const auto is_loss = [&](const char* key) {
    return losses[key].is_number() || losses[key].is_null();
  };
  return losses.contains("own") && losses.contains("other") && is_loss("own") && is_loss("other") &&
         (!losses.contains("gradients") || is_loss("gradients"));
}

// Returns true if the gradients of two runs differ by more than 16-bit numbers round.
bool GradientsDiffer(double share) { return !(share <= 0.1); }

}  // namespace

bool ComputesIn16Bits(const std::string& package, const Manifest& manifest) {
  for (const ModuleInfo& module : manifest.modules) {
    if (ReadFile(package + "/" + module.code).find("autocast_enter") != std::string::npos)
      return true;
    for (const WeightInfo& weight : module.held)
      if (const Dtype* dtype = FindDtype(weight.dtype); dtype && dtype->bits == 16) return true;
  }
  return false;
}

bool LossesDiffer(double loss, double other, bool narrow) {
  if (std::isnan(loss) || std::isnan(other)) return std::isnan(loss) != std::isnan(other);
  if (std::isinf(loss) || std::isinf(other)) return loss != other;
  // In 32 bits, rounding changes losses of language models by up to 4e-8 of them.
  // Neighbors among bfloat16 numbers are up to 2^-7 of them apart.
  const double share = narrow ? 1.0 / 128 : 1e-6;
  return std::abs(loss - other) > share * std::max(std::abs(loss), std::abs(other)) + 1e-7;
}

std::string WhyRowsMix(const TuneRequest& request, const Job& job, const Manifest& manifest,
                       const std::set<int64_t>& sizes, const TuneBudget& budget) {
  const std::string unknown = "it is not known whether results depend on it: ";
  if (const std::string why = WhyNoData(job); !why.empty()) return unknown + Split(why, '\n').at(0);
  const int64_t own = job.microbatch_size, other = OtherSize(sizes, own);
  const Trial trial = {std::min(SamplesOf(job), 2 * std::max(own, other)), Draws(request, manifest),
                       ComputesIn16Bits(request.package, manifest)};
  const KeptMeasurements kept = KeptFor(request, manifest);
  const std::string name = KeptPrefix(request, job) + "mixed-rows-" +
                           HexHash(TrainingText(job) + WeightsText(request, manifest)) + "-" +
                           std::to_string(own) + "-" + std::to_string(other) + "-samples";
  Json losses = ReadKept(kept, name, 1).value_or(nullptr);
  if (!IsVerdict(losses)) losses = nullptr;  // it is damaged
  try {
    if (losses.is_null() && !budget.IsOver()) {
      Say(request, std::string(trial.evaluates ? "losses" : "two steps") +
                       " with microbatches of " + Counted(own, "sample") + ", and with " +
                       std::to_string(other));
      const int modules = static_cast<int>(manifest.modules.size());
      losses = LossesWith(request, job, trial, other, modules, budget);
      if (!losses.is_null()) WriteKept(kept, name, 1, losses);
    }
  } catch (const std::exception& error) {
    return unknown + Split(error.what(), '\n').at(0);
  }
  if (losses.is_null()) return unknown + budget.Ended() + " ended the check";
  const double own_loss = LossIn(losses, "own"), loss = LossIn(losses, "other");
  char text[200];
  if (LossesDiffer(own_loss, loss, trial.narrow))
    std::snprintf(text, sizeof text, "the loss %s is %.8g with it, and %.8g with %lld",
                  trial.evaluates ? "after a step" : "of the second step", own_loss, loss,
                  static_cast<long long>(other));
  else if (losses.contains("gradients") && GradientsDiffer(LossIn(losses, "gradients")))
    std::snprintf(text, sizeof text,
                  "the gradients of the second step differ by %.3g %% between it and %lld",
                  100 * LossIn(losses, "gradients"), static_cast<long long>(other));
  else
    return "";
  return text;
}

}  // namespace pipewright
