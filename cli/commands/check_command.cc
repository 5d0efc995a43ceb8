// pipewright check PACKAGE [JOB] [--conf F] [--ranks N] [--memory SIZE] [--weights F] [--json]
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/json.h"
#include "base/process/messages.h"
#include "base/size.h"
#include "base/text.h"
#include "check/check.h"
#include "cli/commands.h"
#include "cli/numbers.h"

namespace pipewright {

namespace {

void PrintText(const CheckRequest& request, const CheckResult& result) {
  std::cout << request.package;
  if (result.ranks > 0) std::cout << ", " << Counted(result.ranks, "rank");
  std::cout << "\n";
  for (const Finding& finding : result.findings)
    std::cout << Paint(ToText(finding.severity), finding.severity, 1) << " [" << finding.rule
              << "] " << finding.text << "\n";
  for (size_t i = 0; i < result.not_checked.size(); ++i) {
    const NotChecked& skipped = result.not_checked[i];
    std::cout << (i == 0 || result.not_checked[i - 1].why != skipped.why ? "not checked [" : "")
              << skipped.rule;
    const bool more =
        i + 1 < result.not_checked.size() && result.not_checked[i + 1].why == skipped.why;
    std::cout << (more ? std::string(", ") : "]: " + skipped.why + "\n");
  }
  std::cout << Counted(result.Count(Severity::kError), "error") << ", "
            << Counted(result.Count(Severity::kWarning), "warning") << "\n";
}

void PrintJson(const CheckResult& result) {
  Json findings = Json::array(), skipped = Json::array();
  for (const Finding& finding : result.findings) {
    Json entry = {{"rule", finding.rule},
                  {"severity", ToText(finding.severity)},
                  {"text", Json::parse(Quote(finding.text))}};  // file names may contain any bytes
    if (finding.line > 0) entry["line"] = finding.line;
    if (finding.column > 0) entry["column"] = finding.column;
    findings.push_back(std::move(entry));
  }
  for (const NotChecked& one : result.not_checked)
    skipped.push_back({{"rule", one.rule}, {"why", Json::parse(Quote(one.why))}});
  std::cout << FormatJson({{"errors", result.Count(Severity::kError)},
                           {"warnings", result.Count(Severity::kWarning)},
                           {"findings", std::move(findings)},
                           {"not_checked", std::move(skipped)}});
}

}  // namespace

void AddCheckCommand(CLI::App& app) {
  struct Options {
    CheckRequest request;
    std::string memory;
    bool json = false, strict = false, rules = false;
  };
  auto options = std::make_shared<Options>();
  CheckRequest& request = options->request;
  auto* package = app.add_option("package", request.package, "the package");
  auto* job = app.add_option("job,--job", request.job, "the job of the run");
  auto* eval = app.add_flag("--eval", request.eval, "check an evaluation of the job, not training");
  auto* input = app.add_option("--input", request.input,
                               "input file of `infer`, to check an inference instead of a job");
  app.add_option("--output", request.output, "output file of `infer`")->needs(input);
  app.add_option("--outputs", request.outputs, "outputs for `infer` to compute: NAME,...")
      ->delimiter(',')
      ->needs(input);
  app.add_option("--microbatches", request.microbatches,
                 "number of microbatches that `infer` splits the rows into")
      ->check(AtLeast(1, 1 << 20))
      ->needs(input);
  app.add_option("--set", request.set,
                 "override a value of the job, such as optimizer.lr=0.1 (repeatable)")
      ->needs(job)
      ->allow_extra_args(false)
      ->type_name("KEY=VALUE");
  input->excludes(job);
  eval->needs(job);
  auto* conf = app.add_option("--conf", request.conf,
                              "conf that groups the modules (default: PACKAGE/conf/mp_conf.json)");
  app.add_option("--ranks", request.ranks, "number of ranks that the run will start")
      ->check(AtLeast(1, 1 << 20));
  app.add_option("--weights", request.weights, "weights that the run will start from");
  app.add_option("--device-map", request.device_map,
                 "device map from `pipewright place`, used instead of a conf")
      ->excludes(conf);
  app.add_flag("--resume", request.resume, "check a run that resumes from an existing checkpoint");
  app.add_option("--memory", options->memory, "limit per rank: bytes, or a size such as 16GB");
  app.add_flag("--strict", options->strict, "exit with code 1 for warnings, too");
  app.add_flag("--json", options->json, "print JSON");
  auto* rules = app.add_flag("--rules", options->rules, "list the rules without checking anything");
  rules->excludes(package);
  app.callback([options] {
    if (options->rules) {
      for (const CheckRule& rule : CheckRules())
        std::cout << rule.name << std::string(10 - rule.name.size(), ' ') << rule.description
                  << "\n";
      return;
    }
    if (options->request.package.empty()) throw UsageError("check", "give a package");
    if (!options->memory.empty())
      options->request.memory = static_cast<double>(ParseSize(options->memory, "--memory"));
    const CheckResult result = Check(options->request);
    if (options->json)
      PrintJson(result);
    else
      PrintText(options->request, result);
    if (result.Count(Severity::kError) > 0 ||
        (options->strict && result.Count(Severity::kWarning) > 0))
      throw CLI::RuntimeError(kFailure);
  });
}

}  // namespace pipewright
