// pipewright partition FILE [options]
#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

#include "plan/error.h"
#include "plan/partition/profile_problem.h"
#include "plan/partition/report.h"
#include "plan/partition/step.h"
#include "plan/partition/tarnawski.h"
#include "plan/schedule.h"
#include "plan/size.h"
#include "plan/text.h"

namespace pipewright {

namespace {

struct Request {
  std::string file, mode = "exact", output, memory, in_flight, objective = "bottleneck",
                    schedule = "1f1b";
  std::vector<int> machines;
  std::vector<double> bandwidths, speeds, links;
  std::vector<std::string> memories, together, shared;
  int stages = -1, devices = -1, cpus = -1, replicas = 1, microbatches = 1 << 30;
  double latency = 0, optimizer_state = 2, time_limit = kInfinity, pipedream_memory = 16e9;
  double activation_compression_ratio = 0;
  bool straight_pipeline = false, use_memory_constraint = false, use_fewer_machines = false;
  bool json = false, explain = false;
};

}  // namespace

static double Bytes(const std::string& text, const std::string& option) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) {
    if (!(value >= 0)) throw UsageError(option, "a size of at least 0 is expected, not " + text);
    return value;
  }
  return static_cast<double>(ParseSize(text, option));
}

// One class for each different kind of device; the counts of a profile come from the command line.
static void SetDevices(PartitionProblem& problem, const Request& request) {
  int devices = request.devices;
  if (devices < 0 && !request.machines.empty()) {
    devices = 1;
    for (int machines : request.machines) devices *= machines;
  }
  bool own = !problem.devices.empty();
  if (!own) {
    if (devices < 0) devices = request.stages;
    for (size_t size : {request.speeds.size(), request.links.size(), request.memories.size()})
      if (devices < 0 && size > 0) devices = static_cast<int>(size);
    if (devices < 1)
      throw UsageError("partition", "the number of devices is not given",
                       "--stages K, or --devices N for up to N stages");
    DeviceClass gpu, cpu;
    gpu.count = devices;
    cpu.name = "cpu";
    cpu.host = true;
    cpu.count = 0;
    problem.devices = {gpu, cpu};
  }
  DeviceClass gpu = problem.devices[0], cpu = problem.devices[1];
  if (devices >= 0) gpu.count = devices;
  if (request.cpus >= 0) cpu.count = request.cpus;
  if (!request.memory.empty()) gpu.memory_bytes = Bytes(request.memory, "--memory");
  auto one_each = [&](size_t size, const char* option) {
    if (size > 0 && static_cast<int>(size) != gpu.count)
      throw UsageError(option, "one number a device is expected: " + std::to_string(gpu.count) +
                                   ", not " + std::to_string(size));
  };
  one_each(request.speeds.size(), "--speeds");
  one_each(request.links.size(), "--links");
  one_each(request.memories.size(), "--memories");
  problem.devices.clear();
  for (int d = 0; d < gpu.count; ++d) {
    DeviceClass device = gpu;
    device.count = 1;
    if (!request.speeds.empty()) device.speed = request.speeds[d];
    if (!request.links.empty()) device.link = request.links[d];
    if (!request.memories.empty()) device.memory_bytes = Bytes(request.memories[d], "--memories");
    if (!(device.speed > 0) || !(device.link > 0))
      throw UsageError("--speeds", "speeds and links above 0 are expected");
    bool found = false;
    for (DeviceClass& known : problem.devices)
      if (known.speed == device.speed && known.link == device.link &&
          known.memory_bytes == device.memory_bytes) {
        ++known.count;
        found = true;
      }
    if (!found) problem.devices.push_back(device);
  }
  if (problem.devices.size() > 1)
    for (size_t c = 0; c < problem.devices.size(); ++c)
      problem.devices[c].name = "gpu" + std::string(1, static_cast<char>('a' + c % 26)) + "-";
  problem.devices.push_back(cpu);
}

static int FindNode(const PartitionProblem& problem, const std::string& name,
                    const std::string& option) {
  std::vector<std::string> names;
  for (size_t i = 0; i < problem.nodes.size(); ++i) {
    if (problem.nodes[i].name == name) return static_cast<int>(i);
    names.push_back(problem.nodes[i].name);
  }
  throw UsageError(option, "there is no node \"" + name + "\"" + Suggest(name, names));
}

// --together a,b keeps nodes in one stage; --shared a,b charges the gradient exchange of a weight
// that both use where they are apart.
static void SetGroups(PartitionProblem& problem, const Request& request) {
  int next = 0;
  for (const PartitionNode& node : problem.nodes) next = std::max(next, node.group + 1);
  for (const std::string& list : request.together) {
    int group = next++;
    for (const std::string& name : Split(list, ',')) {
      int node = FindNode(problem, name, "--together"), old = problem.nodes[node].group;
      problem.nodes[node].group = group;
      for (PartitionNode& other : problem.nodes)
        if (old >= 0 && other.group == old) other.group = group;
    }
  }
  for (const std::string& list : request.shared) {
    PartitionValue value;
    double bytes = 0;
    for (const std::string& name : Split(list, ',')) {
      value.consumers.push_back(FindNode(problem, name, "--shared"));
      bytes = std::max(bytes, problem.nodes[value.consumers.back()].parameter_bytes);
    }
    value.time = 2 * bytes * problem.exchange_time;
    value.transfers = 2;
    problem.values.push_back(value);
  }
}

static PipeDreamOptions UpstreamOptions(const Request& request) {
  PipeDreamOptions options;
  options.machines = request.machines;
  if (options.machines.empty() && request.devices > 0) options.machines = {request.devices};
  if (options.machines.empty() && request.stages > 0) options.machines = {request.stages};
  if (options.machines.empty())
    throw UsageError("-n", "the number of machines is expected", "-n 4, or -n 4 2 for two levels");
  options.bandwidths = request.bandwidths;
  if (options.bandwidths.empty()) options.bandwidths.assign(options.machines.size(), 1e9);
  options.memory_bytes =
      request.memory.empty() ? request.pipedream_memory : Bytes(request.memory, "--memory");
  options.straight_pipeline = request.straight_pipeline;
  options.use_memory_constraint = request.use_memory_constraint;
  options.use_fewer_machines = request.use_fewer_machines;
  if (request.activation_compression_ratio != 0)
    options.activation_compression_ratio = request.activation_compression_ratio;
  return options;
}

static void WriteOutputs(const Request& request, const PartitionReport& report,
                         const ModelGraph* graph) {
  std::filesystem::create_directories(request.output);
  std::string folder = request.output + "/";
  std::vector<int> replicas;
  for (const auto& stage : report.stages) replicas.push_back(stage.replicas);
  StageConfs confs = MakeStageConfs(replicas);
  WriteFile(folder + "dp_conf.json", WriteConf(confs.dp));
  WriteFile(folder + "mp_conf.json", WriteConf(confs.mp));
  WriteFile(folder + "hybrid_conf.json", WriteConf(confs.hybrid));
  WriteFile(folder + "partition.json", ReportJson(report).dump(2) + "\n");
  if (!graph) return;
  WriteFile(folder + "graph.txt", WriteGraphText(*graph));
  WriteFile(folder + "graph.dot", GraphDot(*graph));
}

static std::string ExplainText(const PartitionProblem& problem, const Explanation& e,
                               const PartitionResult& result) {
  if (e.stage < 0) return "no partition fits the devices\n";
  std::string unit = problem.time_unit.empty() ? "" : " " + problem.time_unit;
  std::string out = "stage " + std::to_string(e.stage) + " binds: its " + e.binds;
  if (e.binds == "memory") out += " limit (without it there is a faster partition)";
  out += "\n";
  if (std::isfinite(e.next_best))
    out += std::string(e.next_best_proven ? "the next best partition" : "another partition") +
           " without that stage costs " + Json(e.next_best).dump() + unit + ", " +
           Json(e.next_best - result.objective).dump() + unit + " more\n";
  else
    out += e.next_best_proven ? "no partition without that stage fits\n"
                              : "the next best partition is not known\n";
  return out;
}

static void Partition(const Request& request) {
  auto start = std::chrono::steady_clock::now();
  auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::string text = ReadFile(request.file);
  bool is_graph = LooksLikeGraphText(text);
  ModelGraph graph;
  PartitionReport report;
  std::string explanation;
  if (request.mode == "pipedream") {
    if (!is_graph)
      throw UsageError("--mode", "pipedream reads PipeDream's graph text only: " + request.file,
                       "use --mode exact or --mode fast");
    graph = ReadGraphText(text, request.file);
    PipeDreamResult result = PipeDreamPartition(graph, UpstreamOptions(request));
    report = MakeReport(graph, result);
    for (size_t s = 0; s < result.stages.size(); ++s)
      for (int node : result.stages[s].nodes) graph.nodes[node].stage = static_cast<int>(s);
  } else {
    PartitionProblem problem;
    ProfileProblem profile;
    if (is_graph) {
      graph = ReadGraphText(text, request.file);
      ProfileCosts costs;
      if (!request.bandwidths.empty()) costs.bandwidth = request.bandwidths.back();
      if (!(costs.bandwidth > 0)) throw UsageError("-b", "a bandwidth above 0 is expected");
      costs.latency = request.latency;
      costs.optimizer_state = request.optimizer_state;
      profile = ToProblem(graph, costs);
      problem = profile.problem;
      std::string held = request.in_flight.empty() ? request.schedule : request.in_flight;
      problem.in_flight = held == "gpipe" ? InFlight::kGPipe
                          : held == "one" ? InFlight::kOne
                                          : InFlight::k1F1B;
      problem.microbatches = request.microbatches;
      if (problem.in_flight == InFlight::kGPipe && request.microbatches == 1 << 30)
        throw UsageError("--microbatches", "gpipe holds all microbatches: say how many");
    } else {
      Json json = ParseJson(text, request.file);
      if (!IsTarnawski(json))
        throw Error(request.file, "is neither graph text, nor an instance of Tarnawski et al.");
      problem = ReadTarnawski(json, request.file);
      problem.transfer_latency = request.latency;
    }
    problem.stages = request.stages;
    problem.max_replicas = request.replicas;
    SetDevices(problem, request);
    SetGroups(problem, request);
    SolveOptions options;
    options.exact = request.mode == "exact";
    options.max_seconds = request.time_limit;
    PartitionResult result;
    if (request.objective == "step") {
      if (request.microbatches == 1 << 30)
        throw UsageError("--microbatches", "--objective step needs the number of microbatches");
      result = SolveStep(problem, options, {request.schedule, request.microbatches});
      report.more["schedule"] = request.schedule;
      report.more["microbatches"] = request.microbatches;
    } else {
      result = SolvePartition(problem, options);
    }
    Json more = report.more;
    report = MakeReport(problem, result);
    report.more = more;
    if (is_graph && result.feasible) {
      SetStages(graph, profile, result);
      std::vector<std::string> inputs;
      for (int input : profile.inputs) inputs.push_back(graph.nodes[input].id);
      auto& first = report.stages[0].nodes;
      first.insert(first.begin(), inputs.begin(), inputs.end());
    }
    report.seconds = seconds();
    if (request.explain && request.objective == "bottleneck") {
      Explanation e = ExplainPartition(problem, result, options);
      explanation = ExplainText(problem, e, result);
      report.more["explain"] = {
          {"stage", e.stage},
          {"binds", e.binds},
          {"next_best", std::isfinite(e.next_best) ? Json(e.next_best) : Json(nullptr)},
          {"next_best_proven", e.next_best_proven}};
    }
  }
  report.mode = request.mode;
  if (report.seconds == 0) report.seconds = seconds();
  if (!request.output.empty() && report.feasible)
    WriteOutputs(request, report, is_graph ? &graph : nullptr);
  if (request.json)
    std::cout << ReportJson(report).dump(2) << "\n";
  else
    std::cout << ReportTable(report) << explanation;
}

void AddPartitionCommand(CLI::App& app) {
  auto request = std::make_shared<Request>();
  Request& r = *request;
  app.add_option("file", r.file,
                 "profile in PipeDream's graph text, or instance of Tarnawski et al.")
      ->required();
  app.add_option("--mode", r.mode, "exact: the best; fast: near it; pipedream: as PipeDream does")
      ->check(CLI::IsMember({"exact", "fast", "pipedream"}));
  app.add_option("--stages", r.stages, "exactly so many stages; left out: what is best")
      ->check(CLI::PositiveNumber);
  app.add_option("--devices", r.devices, "devices to use at most")->check(CLI::NonNegativeNumber);
  app.add_option("--cpus", r.cpus, "CPUs to use at most")->check(CLI::NonNegativeNumber);
  app.add_option("-s,--memory,--memory_size", r.memory, "memory of a device: bytes, or 16GB");
  app.add_option("-n,--all_num_machines", r.machines, "machines of each level, innermost first")
      ->expected(1, -1);
  app.add_option("-b,--network_bandwidths", r.bandwidths, "bytes a second, of each level (1e9)")
      ->expected(1, -1);
  app.add_option("--speeds", r.speeds, "speed of each device, 1 being that of the profile")
      ->delimiter(',');
  app.add_option("--memories", r.memories, "memory of each device")->delimiter(',');
  app.add_option("--links", r.links, "bandwidth of each device's link, in units of -b")
      ->delimiter(',');
  app.add_option("--latency", r.latency, "fixed cost of one transfer")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--replicas", r.replicas, "replicas a stage may have (1)")
      ->check(CLI::PositiveNumber);
  app.add_option("--together", r.together, "nodes kept in one stage: a,b (repeatable)");
  app.add_option("--shared", r.shared,
                 "nodes that share a weight: apart, they exchange its gradient (repeatable)");
  app.add_option("--objective", r.objective,
                 "bottleneck: the slowest stage; step: a simulated step of --schedule")
      ->check(CLI::IsMember({"bottleneck", "step"}));
  app.add_option("--schedule", r.schedule, "schedule of --objective step (1f1b)")
      ->check(CLI::IsMember(ScheduleNames()));
  app.add_option("--in-flight", r.in_flight, "activations held as in 1f1b, gpipe, or one")
      ->check(CLI::IsMember({"1f1b", "gpipe", "one"}));
  app.add_option("--microbatches", r.microbatches, "microbatches a step")
      ->check(CLI::PositiveNumber);
  app.add_option("--optimizer-state", r.optimizer_state,
                 "bytes of optimizer state a byte of parameters (2, as Adam)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--time-limit", r.time_limit, "seconds of exact search; then the best found")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--activation_compression_ratio", r.activation_compression_ratio,
                 "pipedream: counts transfers, divided by this")
      ->check(CLI::PositiveNumber);
  app.add_flag("--straight_pipeline", r.straight_pipeline, "pipedream: no replication");
  app.add_flag("--use_memory_constraint", r.use_memory_constraint, "pipedream: keep to -s");
  app.add_flag("--use_fewer_machines", r.use_fewer_machines, "pipedream: where as good");
  app.add_flag("--explain", r.explain, "say what binds and what the next best cut would cost");
  app.add_flag("--json", r.json, "print JSON and nothing else");
  app.add_option("-o,--output", r.output,
                 "folder for the graph with stages, its picture and the confs");
  app.callback([request] { Partition(*request); });
}

}  // namespace pipewright
