// The rules of a check. Each adds what it finds; what a later rule needs is returned.
#pragma once
#include <functional>
#include <optional>
#include <string>

#include "check/check.h"
#include "formats/conf.h"
#include "formats/manifest.h"
#include "report/prediction.h"

namespace pipewright {

// Adds an error of `rule` if `work` throws one. Returns whether it did not.
bool Passes(CheckResult& result, const std::string& rule, const std::function<void()>& work);
void Add(CheckResult& result, Severity severity, const std::string& rule, const std::string& text);
void Skip(CheckResult& result, const std::string& rule, const std::string& why);

// In package_rules.cc; they look at the package by itself.
std::optional<Manifest> CheckPackage(const CheckRequest& request, CheckResult& result);
void CheckWeights(const CheckRequest& request, const Manifest& manifest, CheckResult& result);
// Returns whether all code compiles and fits together.
bool CheckModules(const std::string& package, const Manifest& manifest, CheckResult& result);

// In run_rules.cc; they look at conf, job and data, and at all of them together.
std::optional<Conf> CheckConfFile(const CheckRequest& request, const Manifest& manifest,
                                  CheckResult& result);
std::optional<Job> CheckJob(const CheckRequest& request, CheckResult& result);
bool CheckPlan(const CheckRequest& request, const Job& job, CheckResult& result);
bool CheckData(const CheckRequest& request, const Job& job, const Manifest& manifest,
               CheckResult& result);
// Runs the checks that every rank makes before it loads weights; the ranks are threads here.
// Returns the job with the outputs that its losses name.
std::optional<Job> CheckStart(const CheckRequest& request, const Job& job, CheckResult& result);
// Does the same for an inference. Returns whether it found no error.
bool CheckInference(const CheckRequest& request, CheckResult& result);
void CheckOutputs(const CheckRequest& request, const Job& job, const Manifest& manifest,
                  CheckResult& result);

// In value_rules.cc. Looks for numbers in the data that are no rows of a table, or no classes.
// `job` is what CheckStart returned.
void CheckValues(const CheckRequest& request, const Job& job, const Manifest& manifest,
                 CheckResult& result);
// Does the same for the file of an inference.
void CheckInputValues(const CheckRequest& request, const Manifest& manifest, CheckResult& result);

// In cost_rules.cc. Looks at what the profile predicts.
void CheckCosts(const CheckRequest& request, const Job& job, CheckResult& result);

// In machine_rules.cc. Looks at this machine.
void CheckMachine(const std::optional<Job>& job, CheckResult& result);

}  // namespace pipewright
