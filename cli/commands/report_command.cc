// pipewright report PACKAGE [--job F] [--conf F] [--trace F] [--metrics F]... -o FILE
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/size.h"
#include "cli/commands.h"
#include "report/page.h"

namespace pipewright {

namespace {

struct Request {
  std::string package, job, conf, profile, trace, memory, output;
  std::vector<std::string> metrics;
  bool force = false;
};

void Report(const Request& request) {
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
  auto request = std::make_shared<Request>();
  app.add_option("package", request->package, "the package")->required();
  app.add_option("--job", request->job, "predict this run of it, by its profile");
  app.add_option("--conf", request->conf,
                 "conf that groups the modules (default: PACKAGE/conf/mp_conf.json)");
  app.add_option("--profile", request->profile,
                 "measured times (default: PACKAGE/profile.json, if it is there)");
  app.add_option("--trace", request->trace, "a step that `bench --trace` measured");
  app.add_option("--metrics", request->metrics,
                 "curves of a run that `train --metrics` wrote (repeatable)");
  app.add_option("--memory", request->memory,
                 "limit of each rank: bytes, or 16GB (default: \"memory\" of the job)");
  app.add_option("-o,--output", request->output, "the page to write: HTML")->required();
  app.add_flag("--force", request->force, "write over a file there that no earlier report wrote");
  app.callback([request] { Report(*request); });
}

}  // namespace pipewright
