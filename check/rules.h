// Declares the rules of a check. Each adds its findings, and returns what later rules need.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "check/check.h"
#include "formats/conf.h"
#include "formats/manifest.h"
#include "report/prediction.h"

namespace pipewright {

// Adds an error of `rule` if `work` throws. Returns true if it does not throw.
bool Passes(CheckResult& result, const std::string& rule, const std::function<void()>& work);
void Add(CheckResult& result, Severity severity, const std::string& rule, const std::string& text);
void Skip(CheckResult& result, const std::string& rule, const std::string& why);

// Defined in package_rules.cc; they look at the package alone.
std::optional<Manifest> CheckPackage(const CheckRequest& request, CheckResult& result);
void CheckWeights(const CheckRequest& request, const Manifest& manifest, CheckResult& result);
// Returns true if all code compiles and fits together.
bool CheckModules(const std::string& package, const Manifest& manifest, CheckResult& result);

// Defined in run_rules.cc; they look at conf, job and data, and at how these fit together.
std::optional<Conf> CheckConfFile(const CheckRequest& request, const Manifest& manifest,
                                  CheckResult& result);
std::optional<Job> CheckJob(const CheckRequest& request, CheckResult& result);
bool CheckPlan(const CheckRequest& request, const Job& job, CheckResult& result);
bool CheckData(const CheckRequest& request, const Job& job, const Manifest& manifest,
               CheckResult& result);
// Runs the checks that every rank makes before it loads weights; the ranks are threads here.
// Returns the job with the outputs that its losses name.
std::optional<Job> CheckStart(const CheckRequest& request, const Job& job, CheckResult& result);
// Does the same for an inference. Returns the manifest, in which modules that do not run are
// `skipped`.
std::optional<Manifest> CheckInference(const CheckRequest& request, CheckResult& result);
void CheckOutputs(const CheckRequest& request, const Job& job, const Manifest& manifest,
                  CheckResult& result);

// Defined in value_rules.cc. Looks for numbers in the data that exceed a table's rows or a loss's
// classes. `job` is the result of CheckStart.
void CheckValues(const CheckRequest& request, const Job& job, const Manifest& manifest,
                 CheckResult& result);
// Does the same for the file of an inference.
void CheckInputValues(const CheckRequest& request, const Manifest& manifest, CheckResult& result);

// Defined in cost_rules.cc. Checks balance, memory and time as the profile predicts them.
void CheckCosts(const CheckRequest& request, const Job& job, CheckResult& result);

// Defined in machine_rules.cc. Checks this machine.
void CheckMachine(const std::optional<Job>& job, CheckResult& result);

}  // namespace pipewright
