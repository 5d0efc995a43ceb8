#include "check/check.h"

#include <algorithm>

#include "base/text.h"
#include "base/torch_error.h"
#include "check/rules.h"

namespace pipewright {

int CheckResult::Count(Severity severity) const {
  return static_cast<int>(std::count_if(findings.begin(), findings.end(), [&](const Finding& one) {
    return one.severity == severity;
  }));
}

const std::vector<CheckRule>& CheckRules() {
  static const std::vector<CheckRule> rules = {
      {"package", "the manifest can be read"},
      {"weights", "every weight is in its file, with the shape and type that the manifest says"},
      {"code", "modules compile, keep their interface and run on the sizes of the example"},
      {"conf", "every module has a stage and every stage a rank; stages follow the flow of values"},
      {"job", "every key is known and every value in its range"},
      {"plan", "the schedule can be made for the conf and job, and cannot deadlock if sends wait"},
      {"data", "the data files have the columns, types, sizes and samples that the run needs"},
      {"start", "losses, targets and the sizes of all values fit together on every rank"},
      {"values", "numbers in the data are valid embedding rows and classes of the model"},
      {"outputs", "outputs can be written, and replace nothing that the run reads"},
      {"balance", "no rank computes much longer than the others"},
      {"memory", "the predicted peak memory of every rank is below the limit"},
      {"time", "how long a step takes"},
      {"machine", "mpirun is installed, enough files can be opened, and each thread has a core"}};
  return rules;
}

bool Passes(CheckResult& result, const std::string& rule, const std::function<void()>& work) {
  try {
    work();
    return true;
  } catch (const std::exception& e) {
    Add(result, Severity::kError, rule, WithoutBacktrace(e.what()));
    return false;
  }
}

void Add(CheckResult& result, Severity severity, const std::string& rule, const std::string& text) {
  Finding finding{rule, severity, text};
  // Errors of files begin with "FILE:LINE:COLUMN: ".
  const std::vector<std::string> parts = Split(text.substr(0, text.find(": ")), ':');
  auto number = [](const std::string& part) {
    const bool digits = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    return digits && part.size() < 9 ? std::stoi(part) : 0;
  };
  if (parts.size() > 1) finding.line = number(parts[1]);
  if (parts.size() > 2 && finding.line > 0) finding.column = number(parts[2]);
  result.findings.push_back(std::move(finding));
}

void Skip(CheckResult& result, const std::string& rule, const std::string& why) {
  result.not_checked.push_back({rule, why});
}

static void SkipRun(CheckResult& result, const std::string& why) {
  for (const char* rule :
       {"plan", "data", "start", "values", "outputs", "balance", "memory", "time"})
    Skip(result, rule, why);
}

// Checks a run of the job.
static void CheckRun(const CheckRequest& request, const Job& job, const Manifest& manifest,
                     bool code, bool conf, CheckResult& result) {
  const bool plan = conf && CheckPlan(request, job, result);
  if (!conf) Skip(result, "plan", "the conf has mistakes");
  const bool data = CheckData(request, job, manifest, result);
  std::optional<Job> started;
  if (plan && data && code)
    started = CheckStart(request, job, result);
  else
    Skip(result, "start", "code, conf, plan or data have mistakes");
  if (started)
    CheckValues(request, *started, manifest, result);
  else
    Skip(result, "values", "the run does not start");
  if (request.eval) {
    for (const char* rule : {"outputs", "balance", "memory", "time"})
      Skip(result, rule, "this is an evaluation");
    return;
  }
  CheckOutputs(request, job, manifest, result);
  if (plan)
    CheckCosts(request, job, result);
  else
    for (const char* rule : {"balance", "memory", "time"}) Skip(result, rule, "there is no plan");
}

static void CheckInferRun(const CheckRequest& request, bool code, bool conf, CheckResult& result) {
  for (const char* rule : {"job", "plan", "data", "outputs", "balance", "memory", "time"})
    Skip(result, rule, "this is an inference");
  if (!code || !conf) {
    for (const char* rule : {"start", "values"}) Skip(result, rule, "code or conf have mistakes");
    return;
  }
  if (const std::optional<Manifest> run = CheckInference(request, result))
    Passes(result, "values", [&] { CheckInputValues(request, *run, result); });
  else
    Skip(result, "values", "the run does not start");
}

CheckResult Check(const CheckRequest& request) {
  CheckResult result;
  result.ranks = request.ranks;
  const std::optional<Manifest> manifest = CheckPackage(request, result);
  bool code = false, conf = false;
  if (manifest) {
    CheckWeights(request, *manifest, result);
    code = CheckModules(request.package, *manifest, result);
    conf = CheckConfFile(request, *manifest, result).has_value();
  } else {
    for (const char* rule : {"weights", "code", "conf"}) Skip(result, rule, "there is no package");
  }
  std::optional<Job> job;
  if (manifest && !request.input.empty()) {
    CheckInferRun(request, code, conf, result);
  } else {
    if (request.job.empty())
      Skip(result, "job", "none is given: --job FILE");
    else
      job = CheckJob(request, result);
    if (manifest && job)
      CheckRun(request, *job, *manifest, code, conf, result);
    else
      SkipRun(result, request.job.empty() ? "no job is given: --job FILE"
                      : !job              ? "the job has mistakes"
                                          : "there is no package");
  }
  CheckMachine(job, result);
  return result;
}

}  // namespace pipewright
