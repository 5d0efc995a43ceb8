#include "tune/mixed_rows.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <regex>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "formats/conf.h"
#include "plan/schedules/table.h"
#include "tune/allowed.h"
#include "tune/changed_job.h"
#include "tune/kept.h"
#include "tune/profiles.h"
#include "tune/runs.h"

namespace pipewright {

namespace {

// Returns the size next to the job's own: a smaller one if there is any, as it takes less memory.
int64_t OtherSize(const std::set<int64_t>& sizes, int64_t own) {
  const auto at = sizes.find(own);
  return at != sizes.begin() ? *std::prev(at) : *std::next(at);
}

struct Code {
  bool draws = false;   // random numbers
  bool narrow = false;  // 16-bit numbers
};

Code CodeOf(const TuneRequest& request, const Manifest& manifest) {
  static const std::regex random(
      R"(pipewright\.(\w*dropout|generator|scaled_dot_product_attention)\()");
  Code found;
  for (const ModuleInfo& module : manifest.modules) {
    const std::string code = ReadFile(request.package + "/" + module.code);
    found.draws |= std::regex_search(code, random);
    found.narrow |= code.find("autocast_enter") != std::string::npos;
    for (const WeightInfo& weight : module.held)
      if (const Dtype* dtype = FindDtype(weight.dtype)) found.narrow |= dtype->bits == 16;
  }
  return found;
}

// Returns the loss of the second step with microbatches of this size; none if the budget is over.
std::optional<double> LossWith(const TuneRequest& request, const Job& job, int64_t size,
                               int modules, const TuneBudget& budget) {
  const std::string job_file = request.scratch + "/rows_job.json",
                    conf_file = request.scratch + "/rows_conf.json",
                    metrics = request.scratch + "/rows_metrics.jsonl";
  const int64_t samples = SamplesOf(job);
  const int count = size == job.microbatch_size ? job.microbatches
                                                : static_cast<int>((samples + size - 1) / size);
  Json text = ParseJson(ChangedJob(ParseJson(job.text, job.path), job.path, job_file,
                                   {kDefaultSchedule, count, samples}),
                        job.path);
  EraseOutputs(text);
  WriteFile(job_file, FormatJson(text));
  WriteFile(conf_file, WriteConf(GroupModules(modules, 1)));
  return LossOfSecondStep(
      {request.package, job_file, conf_file, 1, RunsInProcess(request, 1), 1, request.start},
      metrics, budget);
}

}  // namespace

bool LossesDiffer(double loss, double other, bool narrow) {
  if (std::isnan(loss) || std::isnan(other)) return std::isnan(loss) != std::isnan(other);
  if (std::isinf(loss) || std::isinf(other)) return loss != other;
  // In 32 bits, rounding changes losses of language models by up to 4e-8 of them.
  const double share = narrow ? 0.02 : 1e-6;
  return std::abs(loss - other) > share * std::max(std::abs(loss), std::abs(other)) + 1e-7;
}

std::string WhyRowsMix(const TuneRequest& request, const Job& job, const Manifest& manifest,
                       const std::set<int64_t>& sizes, const TuneBudget& budget,
                       std::vector<std::string>& notes) {
  const std::string unknown = "whether results depend on the microbatch size was not checked: ";
  const Code code = CodeOf(request, manifest);
  if (code.draws) {
    notes.push_back(unknown + "forward draws random numbers, which depend on it");
    return "";
  }
  if (const std::string why = WhyNoData(job); !why.empty()) {
    notes.push_back(unknown + why);
    return "";
  }
  const int64_t own = job.microbatch_size, other = OtherSize(sizes, own);
  const KeptMeasurements kept = KeptFor(request, manifest);
  const std::string name = KeptPrefix(request, job) + "mixed-rows-" +
                           HexHash(ParseJson(job.text, job.path).value("loss", Json()).dump()) +
                           "-" + std::to_string(own) + "-" + std::to_string(other) + "-samples";
  std::optional<Json> losses = ReadKept(kept, name, 1);
  try {
    if (!losses && !budget.IsOver()) {
      Say(request, "two steps with microbatches of " + Counted(own, "sample") + ", and two with " +
                       std::to_string(other));
      const int modules = static_cast<int>(manifest.modules.size());
      const std::optional<double> first = LossWith(request, job, own, modules, budget),
                                  second = LossWith(request, job, other, modules, budget);
      if (first && second) {
        losses = Json{{"own", *first}, {"other", *second}};
        WriteKept(kept, name, 1, *losses);
      }
    }
  } catch (const std::exception& error) {
    notes.push_back(unknown + "two steps on one rank failed: " + error.what());
    return "";
  }
  if (!losses) {
    notes.push_back(budget.Ended() +
                    " ended tune before it checked whether results depend on the microbatch size");
    return "";
  }
  const auto number = [&](const char* key) {
    const Json& value = losses->at(key);
    return value.is_null() ? std::nan("") : value.get<double>();  // JSON has no NaN
  };
  const double own_loss = number("own"), loss = number("other");
  if (!LossesDiffer(own_loss, loss, code.narrow)) return "";
  char text[200];
  std::snprintf(text, sizeof text,
                "the loss of the second step is %.8g with it, and %.8g with %lld", own_loss, loss,
                static_cast<long long>(other));
  return text;
}

}  // namespace pipewright
