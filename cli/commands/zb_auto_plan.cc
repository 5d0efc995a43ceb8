#include "cli/commands/zb_auto_plan.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "plan/search/stages.h"
#include "plan/search/zb_auto.h"
#include "plan/simulate/measure.h"

namespace pipewright {

namespace {

int NumberOfStages(const ZbRequest& request) {
  if (request.stages.empty()) {
    if (request.placement.find_first_of("0123456789") != std::string::npos)
      return 1 +
             static_cast<int>(std::count(request.placement.begin(), request.placement.end(), ','));
    return request.placement == "v" ? 2 * request.ranks : request.ranks;
  }
  int stages = 0;
  const char* end = request.stages.data() + request.stages.size();
  auto [last, error] = std::from_chars(request.stages.data(), end, stages);
  if (error != std::errc() || last != end || stages < 1)
    throw UsageError("--stages",
                     "\"" + request.stages + "\" is neither a number of stages nor auto");
  return stages;
}

std::string CostsText(const Costs& costs) {
  Json stages = Json::array();
  for (const StageCosts& c : costs.stages) {
    Json stage = {
        {"F", c.F},
        {"I", c.I},
        {"W", c.W},
        {"B", c.B},
        {"activation", c.activation},
        {"kept_for_W", c.kept_for_W},
        {"received", c.received},
        {"weights", c.weights},
        {"gradients", c.gradients},
        {"output", c.output},
        {"step", c.step},
        {"peak",
         {{"F", c.peak.F},
          {"I", c.peak.I},
          {"B", c.peak.B},
          {"W", c.peak.W},
          {"first_B", c.peak.first_B},
          {"first_W", c.peak.first_W},
          {"step", c.peak.step},
          {"forward_only", c.peak.forward_only}}},
        {"spread", {{"F", c.spread.F}, {"I", c.spread.I}, {"B", c.spread.B}, {"W", c.spread.W}}}};
    if (c.recompute >= 0)
      stage["recompute"] = {{"time", c.recompute},
                            {"activation", c.checkpoint},
                            {"peak",
                             {{"I", c.recompute_peak.I},
                              {"B", c.recompute_peak.B},
                              {"first_B", c.recompute_peak.first_B}}}};
    stages.push_back(stage);
  }
  auto link = [](const LinkCosts& l) {
    Json json = {{"latency", l.latency}, {"bandwidth", nullptr}};
    if (l.bandwidth < kNoLimit) json["bandwidth"] = l.bandwidth;
    return json;
  };
  Json json = {{"stages", stages}, {"link", link(costs.link)}, {"disk", link(costs.disk)}};
  for (const auto& [ends, one] : costs.links) {
    Json entry = link(one);
    entry["from"] = ends.first, entry["to"] = ends.second;
    json["links"].push_back(entry);
  }
  for (const auto& [ends, edge] : costs.edges)
    json["edges"].push_back({{"from", ends.first},
                             {"to", ends.second},
                             {"bytes", edge.bytes},
                             {"back", edge.back}});
  return json.dump(1) + "\n";
}

void Report(const ZbAutoResult& found, const Costs& costs, double memory, bool chosen) {
  SimulateOptions options;
  options.recompute = found.recompute;
  Figures figures = Measure(found.plan, costs, Simulate(found.plan, costs, options), options);
  double bubble = 0, bytes = 0;
  for (const RankFigures& rank : figures.ranks) {
    bubble = std::max(bubble, rank.span > 0 ? (figures.span - rank.busy) / figures.span : 0);
    bytes = std::max(bytes, rank.peak_bytes);
  }
  std::cerr << "zb-auto: " << found.plan.stages << " stages, placement "
            << PlacementText(found.placement) << "\n";
  std::vector<std::string> again;
  for (size_t s = 0; s < found.recompute.size(); ++s)
    if (found.recompute[s]) again.push_back(std::to_string(s));
  if (!again.empty())
    std::cerr << "zb-auto: stages that recompute (#recompute in the plan): " << Join(again, ",")
              << "\n";
  char line[300];
  std::snprintf(line, sizeof line, "zb-auto: makespan %.10g (lower bound %.10g)\n", found.makespan,
                found.bound.makespan);
  std::cerr << line;
  std::snprintf(line, sizeof line,
                "zb-auto: span %.10g (lower bound %.10g), bubble of the span %.2f %%\n", found.span,
                found.bound.span, 100 * bubble);
  std::cerr << line;
  std::cerr << "zb-auto: the bounds hold for every order on this placement"
            << (found.recompute.empty() ? "" : " with these stages recomputing") << "\n";
  std::snprintf(line, sizeof line, "zb-auto: on any placement the span is at least %.10g\n",
                found.any_map);
  if (chosen) std::cerr << line;
  std::snprintf(line, sizeof line, "zb-auto: ranks hold up to %.10g of %.10g\n", bytes, memory);
  std::cerr << line;
}

}  // namespace

Plan PlanZbAuto(const ZbRequest& request) {
  if (request.ranks < 1) throw UsageError("--ranks", "is required to make a schedule");
  if (request.microbatches < 1)
    throw UsageError("--microbatches", "is required to make a schedule");
  if (request.costs.empty())
    throw UsageError("--costs", "zb-auto needs the times F, I and W of a stage",
                     "give a file with {\"stages\": [{\"F\": 1, \"I\": 1, \"W\": 1}]}, or one from "
                     "`pipewright-run bench PACKAGE JOB --costs FILE`");
  Costs costs = ReadCosts(request.costs);
  ZbAutoOptions options;
  options.memory = request.memory;
  options.forward_only = request.forward_only;
  ZbAutoResult found;
  if (request.stages == "auto") {
    if (!request.placement.empty() && request.placement != "v" && request.placement != "loop")
      throw UsageError("--placement", "with --stages auto, it must be v or loop, or left out");
    Costs merged;
    found = ZbAutoStages(costs, request.ranks, request.microbatches, options, merged);
    costs = merged;
    if (!request.costs_out.empty()) WriteFile(request.costs_out, CostsText(costs));
  } else {
    int stages = NumberOfStages(request);
    if (!request.placement.empty())
      options.placement = ParsePlacement(request.placement, request.ranks, stages);
    found = ZbAuto(costs, request.ranks, stages, request.microbatches, options);
  }
  Report(found, costs, request.memory, options.placement.empty());
  return std::move(found.plan);
}

}  // namespace pipewright
