// pipewright plot cut|timeline|memory|curves ... -o FILE
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/read_file.h"
#include "base/process/messages.h"
#include "base/size.h"
#include "cli/commands.h"
#include "cli/numbers.h"
#include "plan/loop_text.h"
#include "plan/simulate/compare.h"
#include "plan/simulate/simulate.h"
#include "report/curves_picture.h"
#include "report/cut_picture.h"
#include "report/memory_picture.h"
#include "report/prediction.h"
#include "report/timeline_picture.h"

namespace pipewright {

namespace {

struct PlotRequest {
  std::string package, conf, profile, plan, job, costs, trace, memory, output;
  std::vector<std::string> metrics;
  int step = -1;
  bool csv = false;
};

void Put(const PlotRequest& request, const std::string& picture, std::vector<std::string> read) {
  if (request.output.empty()) {
    std::cout << picture;
    return;
  }
  CheckWritable(request.output, read);
  WriteFile(request.output, picture);
}

void PlotCut(const PlotRequest& request) {
  Put(request, CutSvg(ViewPackage(request.package, request.conf, request.profile)),
      {request.conf, request.profile, request.package + "/manifest.json"});
}

// Returns a plan with its costs, or a package's run as its profile predicts it.
Prediction PredictionOf(const PlotRequest& request) {
  if (request.costs.empty() == request.job.empty())
    throw UsageError("plot", "a prediction needs a plan and --costs, or a package and --job");
  if (!request.job.empty()) {
    Prediction prediction =
        PredictRun(ViewPackage(request.plan, request.conf), ReadJob(request.job));
    for (const std::string& note : prediction.notes) PrintNote(note);
    return prediction;
  }
  Prediction prediction{ReadPlanOrLoop(ReadFile(request.plan), request.plan),
                        ReadCosts(request.costs), {}};
  CheckStages(prediction.costs, prediction.plan.stages);
  return prediction;
}

// Returns the caption of a picture: profiles and traces are in microseconds, but the user chose the
// units of costs.
std::string UnitsOf(const PlotRequest& request, const char* what) {
  return request.costs.empty() ? "time in microseconds"
                               : std::string(what) + " of " +
                                     std::filesystem::path(request.costs).filename().string();
}

void PlotTimeline(const PlotRequest& request) {
  const bool predicts = !request.costs.empty() || !request.job.empty();
  if (request.plan.empty() && (predicts || request.trace.empty()))
    throw UsageError("plot timeline", "requires a plan with --costs, or --trace");
  if (request.step >= 0 && request.trace.empty()) throw UsageError("--step", "requires --trace");
  std::vector<Timeline> timelines;
  if (!request.plan.empty()) {
    const Prediction p = PredictionOf(request);
    timelines.push_back(
        {"predicted", StepOf(ActionsOf(p.plan, Simulate(p.plan, p.costs)), 0, request.plan)});
  }
  if (!request.trace.empty())
    timelines.push_back(
        {"measured", StepOf(ReadChromeTrace(ReadFile(request.trace), request.trace), request.step,
                            request.trace)});
  Put(request, TimelineSvg(timelines, UnitsOf(request, "time in the unit")),
      {request.plan, request.costs, request.job, request.trace});
}

void PlotMemory(const PlotRequest& request) {
  const Prediction p = PredictionOf(request);
  double limit = 0;
  if (!request.memory.empty())
    limit = static_cast<double>(ParseSize(request.memory, "--memory"));
  else if (!request.job.empty())
    limit = static_cast<double>(ReadJob(request.job).memory);
  Put(request,
      MemorySvg(p.plan, p.costs, Simulate(p.plan, p.costs), limit,
                UnitsOf(request, "time and bytes in the units")),
      {request.plan, request.costs, request.job});
}

void PlotCurves(const PlotRequest& request) {
  std::vector<Metrics> runs;
  for (const std::string& path : request.metrics) runs.push_back(ReadMetrics(path));
  if (request.csv && runs.size() > 1)
    throw UsageError("--csv", "takes one metrics file, not " + std::to_string(runs.size()) +
                                  ": run it once for each file");
  Put(request, request.csv ? CurvesCsv(runs[0]) : CurvesSvg(runs), request.metrics);
}

}  // namespace

static void AddPrediction(CLI::App& command, PlotRequest& request) {
  command.add_option("plan", request.plan,
                     "a plan or schedule to predict (with --costs), or a package (with --job)");
  command.add_option("--costs", request.costs,
                     "JSON file with the costs of actions (see docs/reference/costs.md)");
  command.add_option("--job", request.job,
                     "predict a run with this job, using the package's profile");
  command.add_option("--conf", request.conf,
                     "conf of the package, with --job (default: PACKAGE/conf/mp_conf.json)");
}

void AddPlotCommand(CLI::App& app) {
  auto request = std::make_shared<PlotRequest>();
  app.require_subcommand(1);
  auto add = [&](const std::string& name, const char* description, void (*run)(const PlotRequest&),
                 const char* inputs) {
    CLI::App* command = app.add_subcommand(name, description);
    command->footer(ExampleText("pipewright plot " + name + " " + inputs + " -o " + name + ".svg"));
    command->add_option("-o,--output", request->output,
                        "the SVG file to write (default: standard output)");
    command->callback([request, run] { run(*request); });
    return command;
  };
  CLI::App* cut =
      add("cut", "draw the modules of a package, colored by stage", PlotCut, "model.pkg");
  cut->add_option("package", request->package, "the package")->required();
  cut->add_option("--conf", request->conf,
                  "conf that groups the modules (default: PACKAGE/conf/mp_conf.json)");
  cut->add_option("--profile", request->profile,
                  "measured times (default: PACKAGE/profile.json, if it exists)");
  CLI::App* timeline = add("timeline", "draw what each rank does in one step", PlotTimeline,
                           "plan.csv --costs costs.json");
  AddPrediction(*timeline, *request);
  timeline->add_option("--trace", request->trace,
                       "measured Chrome trace (from `bench --trace`) to draw below the prediction");
  timeline->add_option("--step", request->step, "step of the trace, from 0 (default: the last)")
      ->check(AtLeast(0));
  CLI::App* memory = add("memory", "draw what each rank holds in one step", PlotMemory,
                         "plan.csv --costs costs.json");
  AddPrediction(*memory, *request);
  memory->get_option("plan")->required();
  memory->add_option("--memory", request->memory,
                     "limit per rank: bytes, or a size such as 16GB (default: the job's memory)");
  CLI::App* curves =
      add("curves", "draw the curves of one or more training runs", PlotCurves, "metrics.jsonl");
  curves->add_option("metrics", request->metrics, "files that `train --metrics` wrote")->required();
  curves->add_flag("--csv", request->csv,
                   "write the numbers instead: one row per step, one column per curve");
  curves->get_option("--output")->description(
      "the SVG file to write, or the table with --csv (default: standard output)");
}

}  // namespace pipewright
