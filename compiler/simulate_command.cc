#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>

#include "compiler/commands.h"
#include "plan/actions.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/lower_bound.h"
#include "plan/plan_text.h"
#include "plan/simulate.h"
#include "plan/text.h"

namespace pipewright {

namespace {

struct Request {
  std::string plan, costs, trace, recompute;
  bool json = false, text = false;
  double memory = kNoLimit;
  int columns = 160;
  SimulateOptions options;
};

// Whole numbers without a point, so that integer costs give integer figures.
Json Value(double x) {
  if (std::abs(x) < 9e15 && x == std::floor(x)) return static_cast<int64_t>(x);
  return x;
}

std::string Show(double x) { return Value(x).dump(); }

std::string Percent(double rate) {
  char out[32];
  std::snprintf(out, sizeof out, "%.2f %%", rate * 100);
  return out;
}

Json ToJson(const Plan& plan, const Trace& trace, const Figures& figures, const LowerBound& bound) {
  Json ranks = Json::array(), path = Json::array();
  for (size_t r = 0; r < figures.ranks.size(); ++r) {
    const RankFigures& f = figures.ranks[r];
    ranks.push_back({{"rank", r},
                     {"first", Value(f.first)},
                     {"last", Value(f.last)},
                     {"busy", Value(f.busy)},
                     {"idle", Value(f.idle)},
                     {"span", Value(f.span)},
                     {"peak_activations", f.peak_activations},
                     {"peak_bytes", Value(f.peak_bytes)},
                     {"bubble_rate", f.bubble_rate(figures.makespan)},
                     {"span_bubble_rate", f.span_bubble_rate()}});
  }
  for (const EventId& id : CriticalPath(trace)) {
    const TimedAction& e = trace.ranks[id.rank][id.event];
    path.push_back({{"rank", id.rank},
                    {"action", ToText(plan.ranks[id.rank][e.action])},
                    {"step", e.step},
                    {"start", Value(e.start)},
                    {"end", Value(e.end)}});
  }
  return {{"makespan", Value(figures.makespan)},
          {"span", Value(figures.span)},
          {"ranks", ranks},
          {"lower_bound", {{"makespan", Value(bound.makespan)}, {"span", Value(bound.span)}}},
          {"critical_path", path}};
}

void Print(const Plan& plan, const Trace& trace, const Figures& figures, const LowerBound& bound) {
  auto line = [](const char* name, double found, double least) {
    std::cout << name << Show(found) << "  (lower bound " << Show(least) << ")\n";
  };
  line("makespan  ", figures.makespan, bound.makespan);
  line("span      ", figures.span, bound.span);
  std::printf("%5s %12s %12s %12s %12s %9s %12s %9s %11s %12s\n", "rank", "first", "last", "busy",
              "idle", "bubble", "span", "bubble", "activations", "bytes");
  for (size_t r = 0; r < figures.ranks.size(); ++r) {
    const RankFigures& f = figures.ranks[r];
    std::printf("%5zu %12s %12s %12s %12s %9s %12s %9s %11lld %12s\n", r, Show(f.first).c_str(),
                Show(f.last).c_str(), Show(f.busy).c_str(), Show(f.idle).c_str(),
                Percent(f.bubble_rate(figures.makespan)).c_str(), Show(f.span).c_str(),
                Percent(f.span_bubble_rate()).c_str(), static_cast<long long>(f.peak_activations),
                Show(f.peak_bytes).c_str());
  }
  // Runs of one kind on one rank are one entry: the path of a long plan stays readable.
  std::string path;
  int rank = -1;
  size_t shown = 0, skipped = 0;
  for (const EventId& id : CriticalPath(trace)) {
    if (shown >= 60) {
      ++skipped;
      continue;
    }
    if (id.rank != rank)
      path += (path.empty() ? "" : "\n ") + std::string(" rank ") + std::to_string(id.rank) + ":";
    rank = id.rank;
    path += " " + ToText(plan.ranks[id.rank][trace.ranks[id.rank][id.event].action]);
    ++shown;
  }
  std::cout << "critical path\n " << path;
  if (skipped) std::cout << "\n  and " << skipped << " more (--json has them all)";
  std::cout << "\n";
}

void SimulatePlan(Request& request) {
  Plan plan = ReadPlan(ReadFile(request.plan), request.plan);
  for (const std::string& note : plan.notes) std::cerr << note << "\n";
  Costs costs = ReadCosts(request.costs);
  CheckStages(costs, plan.stages);
  if (!request.recompute.empty()) {
    request.options.recompute.assign(plan.stages, 0);
    for (const std::string& part : Split(request.recompute, ',')) {
      char* end = nullptr;
      long stage = std::strtol(part.c_str(), &end, 10);
      if (part.empty() || *end || stage < 0 || stage >= plan.stages)
        throw UsageError("--recompute", "\"" + part + "\" is not a stage of the plan");
      if (costs.stages[costs.stages.size() == 1 ? 0 : stage].recompute < 0)
        throw UsageError("--recompute", "the costs of stage " + part + " offer no recompute");
      request.options.recompute[stage] = 1;
    }
  }
  request.options.transfers = !request.trace.empty();
  Trace trace = Simulate(plan, costs, request.options);
  Figures figures = Measure(plan, costs, trace, request.options);
  LowerBound bound =
      BoundOf(plan, costs, request.memory, request.options.steps, request.options.recompute);
  if (!request.trace.empty()) WriteFile(request.trace, ChromeTrace(plan, trace));
  if (request.json) {
    std::cout << ToJson(plan, trace, figures, bound).dump(1) << "\n";
    return;
  }
  Print(plan, trace, figures, bound);
  if (request.text) std::cout << "\n" << TextTimeline(plan, trace, request.columns);
}

}  // namespace

void AddSimulateCommand(CLI::App& app) {
  auto request = std::make_shared<Request>();
  app.add_option("plan", request->plan, "a plan or schedule, as `pipewright plan` writes it")
      ->required();
  app.add_option("--costs", request->costs, "what actions cost: JSON, see docs/simulate.md")
      ->required();
  app.add_option("--trace", request->trace, "write a Chrome trace (chrome://tracing, Perfetto)");
  app.add_flag("--json", request->json, "print all figures as JSON and nothing else");
  app.add_flag("--text", request->text, "draw a timeline in characters");
  app.add_option("--columns", request->columns, "width of the timeline")
      ->check(CLI::Range(10, 1000000));
  app.add_option("--steps", request->options.steps, "run the plan so many times in a row")
      ->check(CLI::PositiveNumber);
  app.add_flag("--barrier", request->options.barrier, "ranks wait for each other between steps");
  app.add_flag("--contention", request->options.contention,
               "a link carries the bytes of one message at a time");
  app.add_flag("--synchronous", request->options.synchronous,
               "a rank stays at a SEND until its RECV is posted");
  app.add_option("--memory", request->memory, "limit per rank, for the lower bound")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--recompute", request->recompute,
                 "stages that recompute their forward, as 0,3 (the costs must offer it)");
  app.callback([request] { SimulatePlan(*request); });
}

}  // namespace pipewright
