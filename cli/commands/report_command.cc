// pipewright report PACKAGE [--job F] [--conf F] [--trace F] [--metrics F]... -o FILE
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/size.h"
#include "cli/commands.h"
#include "report/page.h"

namespace pipewright {

namespace {

struct ReportRequest {
  std::string package, job, conf, profile, trace, memory, output;
  std::vector<std::string> metrics;
  bool force = false;
};

void Report(const ReportRequest& request) {
  std::vector<std::string> read = request.metrics;
  read.insert(read.end(), {request.job, request.conf, request.profile, request.trace,
                           request.package + "/manifest.json"});
  CheckPageOutput(request.output, read, request.force);
  PageInput input;
  input.view = ViewPackage(request.package, request.conf, request.profile);
  if (!request.job.empty()) input.job = ReadJob(request.job);
  input.trace = request.trace;
  input.metrics = request.metrics;
  if (!request.memory.empty())
    input.memory = static_cast<double>(ParseSize(request.memory, "--memory"));
  std::cout << WritePage(request.output, input);
}

}  // namespace

void AddReportCommand(CLI::App& app) {
  auto request = std::make_shared<ReportRequest>();
  app.add_option("package", request->package, "the package")->required();
  app.add_option("--job", request->job,
                 "predict a run with this job, using the package's profile");
  app.add_option("--conf", request->conf,
                 "conf that groups the modules (default: PACKAGE/conf/mp_conf.json)");
  app.add_option("--profile", request->profile,
                 "measured times (default: PACKAGE/profile.json, if it exists)");
  app.add_option("--trace", request->trace, "trace of a measured step, from `bench --trace`");
  app.add_option("--metrics", request->metrics,
                 "metrics of a run, from `train --metrics` (repeatable)");
  app.add_option("--memory", request->memory,
                 "limit per rank: bytes, or a size such as 16GB (default: the job's memory)");
  app.add_option("-o,--output", request->output, "the HTML page to write")->required();
  app.add_flag("--force", request->force, "also replace a file that report did not write");
  app.callback([request] { Report(*request); });
}

}  // namespace pipewright
