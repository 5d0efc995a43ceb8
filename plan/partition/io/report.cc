#include "plan/partition/io/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <set>

#include "base/size.h"
#include "base/table.h"
#include "base/text.h"

namespace pipewright {

// Returns a simple reason why no partition is possible, or "" if there is none.
static std::string WhyInfeasible(const PartitionProblem& problem) {
  struct Piece {
    std::string name;
    double bytes = 0;
  };
  std::map<int, Piece> pieces;  // by group; nodes without one have negative keys
  double all = 0, room = 0, most = 0;
  int devices = 0;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    const PartitionNode& node = problem.nodes[i];
    Piece& piece = pieces[node.group >= 0 ? node.group : -1 - static_cast<int>(i)];
    if (piece.name.empty()) piece.name = node.name;
    piece.bytes += node.static_bytes + node.stash_bytes;
    all += node.static_bytes;
  }
  for (const DeviceClass& device : problem.devices) {
    devices += device.count;
    const double bytes = device.host ? kInfinity : device.memory_bytes;
    if (device.count > 0) room += device.count * bytes, most = std::max(most, bytes);
  }
  const std::string stages = Counted(problem.stages, "stage");
  const int count = static_cast<int>(pieces.size());
  auto size = [](double bytes) { return SizeText(static_cast<int64_t>(bytes)); };
  if (problem.stages > count)
    return stages + " are asked for, of " + Counted(count, "node") +
           " (those kept together count as one): ask for as many at most";
  if (problem.stages > devices)
    return stages + " are asked for, on " + Counted(devices, "device") +
           ": ask for as many at most, or give more --devices";
  if (all > room)
    return "weights and optimizer state take " + size(all) + ", all devices have " + size(room) +
           ": give more or larger devices";
  for (const auto& [group, piece] : pieces)
    if (piece.bytes > most)
      return piece.name + " with what is kept together with it takes " + size(piece.bytes) +
             ", the largest device has " + size(most) + ": cut it further, or give larger devices";
  return "";
}

// Returns the place of each node in an order of execution.
static std::vector<int> Places(int nodes, const std::vector<std::pair<int, int>>& edges) {
  std::vector<int> places(static_cast<size_t>(nodes));
  std::iota(places.begin(), places.end(), 0);
  const std::vector<int> order = TopologicalOrder(nodes, edges);
  for (size_t i = 0; i < order.size(); ++i) places[order[i]] = static_cast<int>(i);
  return places;
}

// Returns the first and the last of `nodes` in the order of `places`.
static std::pair<int, int> Ends(const std::vector<int>& nodes, const std::vector<int>& places) {
  auto before = [&](int a, int b) { return places[a] < places[b]; };
  auto [first, last] = std::minmax_element(nodes.begin(), nodes.end(), before);
  return {*first, *last};
}

PartitionReport MakeReport(const PartitionProblem& problem, const PartitionResult& result) {
  std::vector<std::pair<int, int>> edges;
  for (const PartitionValue& value : problem.values)
    for (int consumer : value.consumers)
      if (value.producer >= 0) edges.push_back({value.producer, consumer});
  const std::vector<int> places = Places(static_cast<int>(problem.nodes.size()), edges);
  std::vector<bool> follows(problem.nodes.size(), false);  // it has a predecessor
  for (auto [from, to] : edges) follows[to] = true;
  PartitionReport report;
  report.feasible = result.feasible;
  report.proven = result.proven;
  report.objective = result.objective;
  report.lower_bound = result.lower_bound;
  report.time_unit = problem.time_unit;
  report.numeric_names = problem.numeric_names;
  if (!result.feasible && result.proven) report.reason = WhyInfeasible(problem);
  for (const PartitionStage& stage : result.stages) {
    PartitionReport::Stage entry;
    const DeviceClass& device = problem.devices[stage.device_class];
    entry.ranks = stage.numbers;
    entry.device = device.name + std::to_string(entry.ranks[0]);
    entry.replicas = stage.replicas;
    // Leaves out backward nodes, which run in reverse order, and nodes that are weights.
    std::vector<int> forward;
    for (int i : stage.nodes) {
      const PartitionNode& node = problem.nodes[i];
      entry.nodes.push_back(node.name);
      if (!node.backward && (follows[i] || node.device_time > 0 || node.host_time > 0))
        forward.push_back(i);
    }
    if (!stage.nodes.empty()) {
      auto [first, last] = Ends(forward.empty() ? stage.nodes : forward, places);
      entry.first = problem.nodes[first].name, entry.last = problem.nodes[last].name;
    }
    entry.compute = stage.compute;
    entry.transfer = stage.transfer;
    entry.memory = stage.memory_bytes;
    entry.load = stage.Load();
    report.stages.push_back(entry);
  }
  return report;
}

PartitionReport MakeReport(const ModelGraph& graph, const PipeDreamResult& result) {
  PartitionReport report;
  report.feasible = report.proven = result.feasible;
  report.objective = result.feasible ? result.seconds_per_minibatch : kInfinity;
  report.lower_bound = report.objective;
  report.time_unit = "s";
  const std::vector<int> places = Places(static_cast<int>(graph.nodes.size()), graph.edges);
  int device = 0;
  Json spans = Json::array();
  for (const PipeDreamStage& stage : result.stages) {
    PartitionReport::Stage entry;
    entry.device = "gpu" + std::to_string(device);
    entry.replicas = stage.replicas;
    for (int r = 0; r < stage.replicas; ++r) entry.ranks.push_back(device++);
    for (int node : stage.nodes) entry.nodes.push_back(graph.nodes[node].id);
    if (!stage.nodes.empty()) {
      auto [first, last] = Ends(stage.nodes, places);
      entry.first = graph.nodes[first].id, entry.last = graph.nodes[last].id;
    }
    entry.compute = stage.compute_s / stage.replicas;
    entry.transfer = stage.transfer_s + stage.allreduce_s / stage.replicas;
    entry.memory = stage.memory_bytes;
    entry.load = std::max((stage.compute_s + stage.allreduce_s) / stage.replicas, stage.transfer_s);
    report.stages.push_back(entry);
    spans.push_back({stage.first_state, stage.end_state});
  }
  report.more["states"] = result.states;
  report.more["splits"] = spans;
  report.more["one_machine_seconds"] = result.one_machine_s;
  report.more["data_parallel_seconds"] = result.data_parallel_s;
  return report;
}

static Json Finite(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

static double Gap(const PartitionReport& report) {
  if (!report.feasible) return kInfinity;
  if (report.objective <= report.lower_bound) return 0;
  if (report.lower_bound <= 0) return kInfinity;
  const double gap = report.objective / report.lower_bound - 1;
  return gap < 1e-9 ? 0 : gap;  // smaller gaps are due to rounding
}

Json ReportJson(const PartitionReport& report) {
  Json stages = Json::array();
  for (size_t s = 0; s < report.stages.size(); ++s) {
    const PartitionReport::Stage& stage = report.stages[s];
    Json nodes = Json::array();
    for (const std::string& name : stage.nodes)
      nodes.push_back(report.numeric_names ? Json(std::stoll(name)) : Json(name));
    stages.push_back({{"stage", s},
                      {"device", stage.device},
                      {"nodes", nodes},
                      {"compute", stage.compute},
                      {"transfer", stage.transfer},
                      {"memory", stage.memory},
                      {"replicas", stage.replicas}});
  }
  Json json = {{"feasible", report.feasible},
               {"objective", Finite(report.objective)},
               {"lower_bound", Finite(report.lower_bound)},
               {"gap", Finite(Gap(report))},
               {"mode", ToText(report.mode)},
               {"proven", report.proven},
               {"seconds", report.seconds},
               {"stages", stages}};
  if (!report.reason.empty()) json["reason"] = report.reason;
  if (!report.time_unit.empty()) json["time_unit"] = report.time_unit;
  for (const auto& [key, value] : report.more.items()) json[key] = value;
  return json;
}

static std::string Format(const char* format, double value) {
  char out[64];
  std::snprintf(out, sizeof out, format, value);
  return out;
}

// Formats seconds as milliseconds, which are easier to compare.
static std::string Time(double value, const std::string& unit) {
  return unit == "s" ? Format("%.3f ms", value * 1000) : Format("%.6g", value);
}

std::string ReportTable(const PartitionReport& report) {
  if (!report.feasible)
    return report.proven ? "infeasible: no partition fits the devices" +
                               (report.reason.empty() ? "" : "\n  " + report.reason) + "\n"
                         : "no partition found, but one may exist\n  give more or "
                           "larger devices, or --mode exact a longer --time-limit\n";
  std::vector<std::vector<std::string>> rows = {
      {"stage", "device", "nodes", "compute", "transfer", "load", "memory", "first", "last"}};
  double slowest = 0;
  for (const auto& stage : report.stages) slowest = std::max(slowest, stage.load);
  for (size_t s = 0; s < report.stages.size(); ++s) {
    const PartitionReport::Stage& stage = report.stages[s];
    std::string device = stage.device;
    if (stage.replicas > 1) device += " x" + std::to_string(stage.replicas);
    rows.push_back({std::to_string(s), device, std::to_string(stage.nodes.size()),
                    Time(stage.compute, report.time_unit), Time(stage.transfer, report.time_unit),
                    Time(stage.load, report.time_unit) + (stage.load >= slowest ? " *" : ""),
                    SizeText(static_cast<int64_t>(stage.memory)),
                    stage.first, stage.last});
  }
  std::string out = FormatTable(rows);
  out += std::string(report.more.contains("schedule") ? "step " : "bottleneck ") +
         Time(report.objective, report.time_unit) + ", at least " +
         Time(report.lower_bound, report.time_unit) + " is needed (gap " +
         Format("%.3g %%", 100 * Gap(report)) + (report.proven ? ", optimal" : ", not proven") +
         "); " + ToText(report.mode) + ", " + Format("%.2f s", report.seconds) + "\n";
  return out;
}

std::string ExplainText(const PartitionReport& report, const Explanation& e) {
  if (e.stage < 0) return "no partition fits the devices\n";
  std::string out = "stage " + std::to_string(e.stage) + " binds: its " + e.binds;
  if (e.binds == "memory") out += " limit (without it there is a faster partition)";
  out += "\n";
  if (!std::isfinite(e.next_best))
    return out + (e.next_best_proven ? "no partition without that stage fits\n"
                                     : "the next best partition is not known\n");
  out += std::string(e.next_best_proven ? "the next best partition" : "a partition") +
         " without that stage costs " + Time(e.next_best, report.time_unit);
  double change = e.next_best - report.objective;
  if (std::abs(change) <= 1e-9 * report.objective) return out + ", as much\n";
  out += ", " + Time(std::abs(change), report.time_unit);
  if (report.objective > 0)
    out += " (" + Format("%.3g %%", 100 * std::abs(change) / report.objective) + ")";
  return out + (change > 0 ? " more\n" : " less\n");
}

static std::string Quote(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

std::string GraphDot(const ModelGraph& graph) {
  static const char* kColors[] = {"lightblue", "green",      "grey", "firebrick1",
                                  "gold",      "chocolate1", "beige"};
  std::string out = "digraph {\n";
  for (const GraphNode& node : graph.nodes) {
    std::string costs = "forward " + Format("%.3f ms", node.forward_ms) + ", backward " +
                        Format("%.3f ms", node.backward_ms) + "\n" +
                        SizeText(static_cast<int64_t>(node.OutputBytes())) + " out, " +
                        SizeText(static_cast<int64_t>(node.parameter_bytes)) + " parameters";
    std::string label = Quote(node.id + ": " + node.description);
    label.insert(label.size() - 1, "\\n" + Join(Split(costs, '\n'), "\\n"));
    out += "  " + Quote(node.id) + " [label=" + label;
    if (node.stage >= 0)
      out += std::string(", style=filled, fillcolor=") + kColors[node.stage % 7] +
             ", tooltip=\"stage " + std::to_string(node.stage) + "\"";
    out += "];\n";
  }
  for (auto [from, to] : graph.edges)
    out += "  " + Quote(graph.nodes[from].id) + " -> " + Quote(graph.nodes[to].id) + ";\n";
  return out + "}\n";
}

StageConfs MakeStageConfs(const std::vector<int>& replicas) {
  std::vector<int> modules(replicas.size());
  std::iota(modules.begin(), modules.end(), 0);
  std::vector<std::vector<int>> ranks_of;
  int rank = 0;
  for (int count : replicas) {
    ranks_of.emplace_back(count);
    for (int& r : ranks_of.back()) r = rank++;
  }
  return MakeStageConfs(modules, ranks_of);
}

StageConfs MakeStageConfs(const std::vector<int>& module_to_stage,
                          const std::vector<std::vector<int>>& ranks_of) {
  StageConfs confs;
  for (Conf* conf : {&confs.dp, &confs.mp, &confs.hybrid}) {
    conf->has_loss_entry = true;
    conf->module_to_stage = module_to_stage;
  }
  std::set<int> used;
  for (const auto& ranks : ranks_of) used.insert(ranks.begin(), ranks.end());
  std::map<int, int> dense;
  for (int device : used) dense.emplace(device, static_cast<int>(dense.size()));
  std::fill(confs.dp.module_to_stage.begin(), confs.dp.module_to_stage.end(), 0);
  confs.dp.stage_to_ranks.emplace_back(used.size());
  std::iota(confs.dp.stage_to_ranks[0].begin(), confs.dp.stage_to_ranks[0].end(), 0);
  for (size_t s = 0; s < ranks_of.size(); ++s) {
    confs.mp.stage_to_ranks.push_back({static_cast<int>(s)});
    confs.hybrid.stage_to_ranks.emplace_back();
    for (int device : ranks_of[s]) confs.hybrid.stage_to_ranks.back().push_back(dense.at(device));
  }
  return confs;
}

}  // namespace pipewright
