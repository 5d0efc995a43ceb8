// `pipewright simulate`: predicts the time and memory of a plan.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/read_file.h"
#include "base/process/messages.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/commands/simulate_report.h"
#include "cli/numbers.h"
#include "plan/actions.h"
#include "plan/loop_text.h"
#include "plan/simulate/compare.h"
#include "plan/simulate/costs_from_trace.h"
#include "plan/simulate/lower_bound.h"
#include "plan/simulate/measure.h"

namespace pipewright {

namespace {

struct SimulateRequest {
  std::string plan, costs, trace, recompute, compare, replay;
  bool json = false, text = false;
  double memory = kNoLimit;
  int columns = 160, steps = 0;  // steps 0: one, or the loop's number
  SimulateOptions options;
};

// Predicts as many steps as were measured, but no more than suffice for the time of one.
Comparison CompareWith(const SimulateRequest& request, const Plan& plan, const Costs& costs) {
  std::vector<TraceAction> measured = ReadChromeTrace(ReadFile(request.compare), request.compare);
  std::set<int> steps;
  for (const TraceAction& action : measured) steps.insert(action.step);
  SimulateOptions options = request.options;
  constexpr int kEnough = 8;
  int wanted = std::min(kEnough, static_cast<int>(steps.size()));
  options.steps = std::max(options.steps, (wanted + plan.steps - 1) / std::max(1, plan.steps));
  std::vector<TraceAction> predicted = ActionsOf(plan, Simulate(plan, costs, options));
  Comparison comparison = CompareTraces(predicted, measured);
  std::string other = OrderDifference(predicted, measured, plan.microbatches);
  if (!other.empty())
    std::cerr << request.compare << ": follows a different schedule than " << request.plan << ": "
              << other << "\n";
  return comparison;
}

// Warns about noisy costs: the prediction cannot be better than they are.
void NoteNoise(const Costs& costs) {
  constexpr double kMost = 0.1;  // largest spread, as a fraction of the time
  std::vector<std::string> noisy;
  for (size_t s = 0; s < costs.stages.size(); ++s) {
    const StageCosts& c = costs.stages[s];
    const double work = c.F + c.B, spread = c.spread.F + c.spread.B;
    if (spread > kMost * work)
      noisy.push_back("stage " + std::to_string(s) + " " + Plain(std::round(100 * spread / work)) +
                      " %");
  }
  if (!noisy.empty())
    PrintNote(costs.source + ": the quartiles of F and B are far apart (" + Join(noisy, ", ") +
              "), so the prediction may be inaccurate");
}

void SimulatePlan(SimulateRequest& request) {
  std::string text = ReadFile(request.plan);
  Plan plan = ReadPlanOrLoop(text, request.plan, request.steps);
  request.options.steps = IsLoopText(text) ? 1 : std::max(1, request.steps);
  for (const std::string& note : plan.notes) std::cerr << note << "\n";
  Costs costs = ReadCosts(request.costs);
  CheckStages(costs, plan.stages);
  NoteNoise(costs);
  if (!request.recompute.empty()) {
    request.options.recompute = RecomputeOf(plan);
    request.options.recompute.resize(plan.stages, 0);
    for (const std::string& part : Split(request.recompute, ',')) {
      char* end = nullptr;
      long stage = std::strtol(part.c_str(), &end, 10);
      if (part.empty() || *end || stage < 0 || stage >= plan.stages)
        throw UsageError("--recompute", "\"" + part + "\" is not a stage of the plan");
      request.options.recompute[stage] = 1;
    }
  }
  if (!request.replay.empty()) {
    if (plan.steps > 1)
      throw UsageError("--replay",
                       "requires a plan of one step; this one has " + std::to_string(plan.steps));
    if (!request.recompute.empty())
      throw UsageError("--replay",
                       "the measured times include recomputation: leave out --recompute");
    const auto measured = ReadChromeTrace(ReadFile(request.replay), request.replay);
    request.options.duration = DurationsOf(measured, request.replay);
    if (request.steps == 0) request.options.steps = StepsOf(measured);
  }
  ActionTrace trace;
  try {
    trace = Simulate(plan, costs, request.options);
  } catch (const Error& e) {
    throw Error(request.plan, e.what());
  }
  Figures figures = Measure(plan, costs, trace, request.options);
  std::optional<LowerBound> bound;  // from the costs; measured times may be shorter
  if (request.replay.empty())
    bound = BoundOf(plan, costs, request.memory, request.options.steps, request.options.recompute);
  if (!request.trace.empty()) {
    CheckWritable(request.trace, {request.plan, request.costs, request.compare, request.replay});
    Plan simulated = plan;  // its memory is shown as simulated, too
    for (int stage = 0; stage < static_cast<int>(request.options.recompute.size()); ++stage)
      if (request.options.recompute[static_cast<size_t>(stage)] &&
          std::count(plan.recompute.begin(), plan.recompute.end(), stage) == 0)
        simulated.recompute.push_back(stage);
    WriteFile(request.trace, ChromeTrace(simulated, trace, &costs));
  }
  Comparison comparison;
  if (!request.compare.empty()) comparison = CompareWith(request, plan, costs);
  if (request.json) {
    Json json = FiguresJson(plan, trace, figures, bound);
    if (!request.compare.empty()) json["compare"] = ComparisonJson(comparison);
    std::cout << json.dump(1) << "\n";
    return;
  }
  PrintFigures(plan, trace, figures, bound);
  if (!request.compare.empty()) PrintComparison(comparison);
  if (request.text)
    std::cout << "\none character is " << Plain(TimelineColumn(trace, request.columns))
              << " in the unit of time of " << request.costs << "\n"
              << TextTimeline(plan, trace, request.columns);
}

}  // namespace

void AddSimulateCommand(CLI::App& app) {
  auto request = std::make_shared<SimulateRequest>();
  app.add_option("plan", request->plan, "a plan or schedule from `pipewright plan`")
      ->required();
  app.add_option("--costs", request->costs,
                 "JSON file with the costs of actions (see docs/reference/costs.md)")
      ->required();
  app.add_option("--trace", request->trace, "write a Chrome trace (chrome://tracing, Perfetto)");
  app.add_option("--compare", request->compare,
                 "compare the prediction with this measured Chrome trace (in the unit of --costs)");
  app.add_option("--replay", request->replay,
                 "give each action its time in this measured Chrome trace, step by step (in the "
                 "unit of --costs, which still gives the link costs)");
  app.add_flag("--json", request->json, "print all figures as JSON and nothing else");
  app.add_flag("--text", request->text, "draw a text timeline");
  app.add_option("--columns", request->columns,
                 "width of the --text timeline in characters (default: 160)")
      ->check(AtLeast(10, 1000000));
  app.add_option("--steps", request->steps,
                 "run a plan N times in a row, or a loop for N steps (default: once or the loop's "
                 "own number, or with --replay, as often as in the trace)")
      ->check(AtLeast(1));
  app.add_flag("--barrier", request->options.barrier,
               "make ranks wait for each other between steps");
  app.add_flag("--contention", request->options.contention,
               "let a link carry the bytes of only one message at a time");
  app.add_flag("--synchronous", request->options.synchronous,
               "make a rank wait at a SEND until its RECV is posted");
  app.add_option("--memory", request->memory,
                 "memory limit per rank for the lower bound, in the unit of --costs")
      ->check(NumberAtLeast(0));
  app.add_option("--recompute", request->recompute,
                 "stages that recompute their forward, such as 0,3 (the costs must allow it)");
  app.callback([request] { SimulatePlan(*request); });
}

}  // namespace pipewright
