// pipewright plot cut|timeline|curves ... -o FILE
#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/numbers.h"
#include "plan/loop_text.h"
#include "plan/simulate/compare.h"
#include "plan/simulate/simulate.h"
#include "report/curves_picture.h"
#include "report/cut_picture.h"
#include "report/timeline_picture.h"

namespace pipewright {

namespace {

struct Request {
  std::string package, conf, profile, plan, costs, trace, output;
  std::vector<std::string> metrics;
  int step = -1;
};

void Put(const Request& request, const std::string& picture, std::vector<std::string> read) {
  if (request.output.empty()) {
    std::cout << picture;
    return;
  }
  CheckWritable(request.output, read);
  WriteFile(request.output, picture);
}

void PlotCut(const Request& request) {
  Put(request, CutSvg(ViewPackage(request.package, request.conf, request.profile)),
      {request.conf, request.profile, request.package + "/manifest.json"});
}

// The first step of a plan of several.
Timeline Predicted(const Request& request) {
  const Plan plan = ReadPlanOrLoop(ReadFile(request.plan), request.plan);
  const Costs costs = ReadCosts(request.costs);
  CheckStages(costs, plan.stages);
  return {"predicted", StepOf(ActionsOf(plan, Simulate(plan, costs)), 0, request.plan)};
}

void PlotTimeline(const Request& request) {
  if (request.plan.empty() != request.costs.empty())
    throw UsageError("plot timeline", "a prediction needs a plan and --costs");
  if (request.plan.empty() && request.trace.empty())
    throw UsageError("plot timeline", "a plan with --costs, or --trace, is needed");
  if (request.step >= 0 && request.trace.empty())
    throw UsageError("--step", "it goes with --trace");
  std::vector<Timeline> timelines;
  if (!request.plan.empty()) timelines.push_back(Predicted(request));
  if (!request.trace.empty())
    timelines.push_back(
        {"measured", StepOf(ReadChromeTrace(ReadFile(request.trace), request.trace), request.step,
                            request.trace)});
  Put(request, TimelineSvg(timelines), {request.plan, request.costs, request.trace});
}

void PlotCurves(const Request& request) {
  std::vector<Metrics> runs;
  for (const std::string& path : request.metrics) runs.push_back(ReadMetrics(path));
  Put(request, CurvesSvg(runs), request.metrics);
}

}  // namespace

void AddPlotCommand(CLI::App& app) {
  auto request = std::make_shared<Request>();
  app.require_subcommand(1);
  auto add = [&](const char* name, const char* description, void (*run)(const Request&)) {
    CLI::App* command = app.add_subcommand(name, description);
    command->add_option("-o,--output", request->output,
                        "the SVG file to write (default: standard output)");
    command->callback([request, run] { run(*request); });
    return command;
  };
  CLI::App* cut = add("cut", "the modules of a package, coloured by stage", PlotCut);
  cut->add_option("package", request->package, "the package")->required();
  cut->add_option("--conf", request->conf,
                  "conf that groups the modules (default: PACKAGE/conf/mp_conf.json)");
  cut->add_option("--profile", request->profile,
                  "measured times (default: PACKAGE/profile.json, if it is there)");
  CLI::App* timeline = add("timeline", "what each rank does over one step", PlotTimeline);
  timeline->add_option("plan", request->plan, "a plan or schedule to predict, with --costs");
  timeline->add_option("--costs", request->costs,
                       "what actions cost: JSON, see docs/reference/costs.md");
  timeline->add_option("--trace", request->trace,
                       "a Chrome trace, as `bench --trace` measures it, below the prediction");
  timeline->add_option("--step", request->step, "step of the trace, from 0 (default: the last)")
      ->check(AtLeast(0));
  CLI::App* curves = add("curves", "the curves of one or several training runs", PlotCurves);
  curves->add_option("metrics", request->metrics, "files that `train --metrics` wrote")->required();
}

}  // namespace pipewright
