// pipewright partition FILE [options]
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/files/output_folder.h"
#include "base/process/messages.h"
#include "base/size.h"
#include "base/text.h"
#include "cli/commands/print_json.h"
#include "cli/numbers.h"
#include "formats/package/package_confs.h"
#include "formats/package/package_files.h"
#include "plan/partition/io/report.h"
#include "plan/partition/io/request.h"
#include "plan/partition/io/stage_costs.h"
#include "plan/partition/step_objective.h"
#include "plan/schedules/schedule.h"
#ifdef PIPEWRIGHT_TORCH
#include "runtime/measure/measure_package.h"
#endif

namespace pipewright {

// Returns the stage of each module of a package. Throws Error if a stage begins inside a module.
static std::vector<int> StageOfModule(const PartitionInput& input) {
  std::vector<int> stage_of(static_cast<size_t>(input.modules), -1);
  size_t first = input.graph.nodes.size() - input.profile.nodes.size();
  for (size_t i = 0; i < input.profile.nodes.size(); ++i) {
    const ProfileNode& node = input.profile.nodes[i];
    int stage = input.graph.nodes[first + i].stage;
    if (stage_of[node.module] >= 0 && stage_of[node.module] != stage)
      throw Error(node.name,
                  "begins stage " + std::to_string(stage) + " inside module" +
                      std::to_string(node.module) + ", where no conf can cut",
                  "cut the package there: pipewright compile --split profile:K, or profile it "
                  "without --fine");
    stage_of[node.module] = stage;
  }
  return stage_of;
}

// Returns the stage of each node of a profile.
static std::vector<int> StageOfNode(const PartitionInput& input) {
  std::vector<int> stage_of;
  const size_t first = input.graph.nodes.size() - input.profile.nodes.size();
  for (size_t i = first; i < input.graph.nodes.size(); ++i)
    stage_of.push_back(input.graph.nodes[i].stage);
  return stage_of;
}

// Returns the names of the output files besides partition.json. Inputs with a graph also write that
// graph, and profiles write the costs of the stages.
static OutputTexts OutputNames(bool graph, bool profile) {
  OutputTexts names = {{"dp_conf.json", ""}, {"mp_conf.json", ""}, {"hybrid_conf.json", ""}};
  if (graph) names.insert({{"graph.txt", ""}, {"graph.dot", ""}});
  if (profile) names["costs.json"] = "";
  return names;
}

static void CheckOutputs(const PartitionRequest& request, bool graph, bool profile) {
  if (!request.writes) return;
  std::error_code none;
  if (std::filesystem::is_directory(request.file, none) &&
      std::filesystem::equivalent(request.file, request.output, none))
    throw Error(request.output, "is the package to partition",
                "name another folder, and give its hybrid_conf.json to pipewright-run: --conf");
  std::vector<std::string> read = {request.file, request.input};
  OutputTexts names = OutputNames(graph, profile);
  if (std::filesystem::is_directory(request.file)) {
    const Manifest manifest = ReadManifest(request.file);
    read = PackageFiles(request.file, manifest);
    read.insert(read.end(), {request.file + "/profile.json", request.input});
    // In the package's own conf folder, confs as `compile` writes them may be replaced.
    if (std::filesystem::equivalent(request.file + "/conf", request.output, none))
      for (const auto& [name, text] :
           PackageConfs(request.file, static_cast<int>(manifest.modules.size())))
        names[name] = text;
  }
  CheckOutputFolder(request.output, kPartitionRecord, names, read, request.force);
}

static Profile MeasureHere(const PartitionRequest& request) {
#ifdef PIPEWRIGHT_TORCH
  ProfileOptions options;
  options.package = request.file;
  options.input = request.input;
  options.microbatch = request.microbatch;
  options.repeat = request.repeat;
  Profile profile;
  MeasureOnRanks(options, 1, [] {},
                 [&](const Profile& measured, const std::string&) { profile = measured; });
  return profile;
#else
  throw Error(request.file, "the package has no profile.json",
              "measure it: pipewright profile " + request.file);
#endif
}

// Reads the input and checks the outputs before anything slow happens: packages may be measured.
static PartitionInput ReadInput(const PartitionRequest& request) {
  const bool package = std::filesystem::is_directory(request.file);
  if (package) CheckOutputs(request, true, true);
  PartitionInput input;
  if (NeedsMeasuring(request)) {
    ReadManifest(request.file);  // reports an error of the package before measuring it
    const Profile measured = MeasureHere(request);
    input = ReadPartitionInput(request, &measured);
  } else {
    input = ReadPartitionInput(request);
  }
  const bool profile = input.kind == PartitionInput::kProfile;
  if (!package) CheckOutputs(request, input.has_graph(), profile);
  return input;
}

static void WriteOutputs(const PartitionRequest& request, const PartitionInput& input,
                         const PartitionReport& report) {
  std::vector<int> replicas;
  std::vector<std::vector<int>> ranks;
  for (const auto& stage : report.stages) {
    replicas.push_back(stage.replicas);
    ranks.push_back(stage.ranks);
  }
  StageConfs confs = input.kind == PartitionInput::kProfile
                         ? MakeStageConfs(StageOfModule(input), ranks)
                         : MakeStageConfs(replicas);
  OutputTexts files = {{"dp_conf.json", WriteConf(confs.dp)},
                       {"mp_conf.json", WriteConf(confs.mp)},
                       {"hybrid_conf.json", WriteConf(confs.hybrid)}};
  if (input.has_graph()) {
    files["graph.txt"] = WriteGraphText(input.graph);
    files["graph.dot"] = GraphDot(input.graph);
  }
  if (input.kind == PartitionInput::kProfile)
    files["costs.json"] = CostsOfStages(input.profile, StageOfNode(input), request.optimizer_state);
  for (const std::string& note :
       WriteOutputFolder(request.output, kPartitionRecord, files, ReportJson(report), {}))
    PrintNote(note);
}

// Returns text that says where the outputs are, or that there are none.
static std::string Written(const PartitionRequest& request, const PartitionInput& input,
                           const PartitionReport& report) {
  if (!report.feasible) return "nothing is written to " + request.output + "\n";
  std::string names = kPartitionRecord;
  const bool profile = input.kind == PartitionInput::kProfile;
  for (const auto& [name, unused] : OutputNames(input.has_graph(), profile)) names += ", " + name;
  return "written to " + request.output + ": " + names + "\n";
}

static PartitionReport LikePipeDream(const PartitionRequest& request, PartitionInput& input) {
  if (!input.has_graph())
    throw UsageError("--mode", "pipedream reads only graph text and profiles, not " + request.file,
                     "use --mode exact or --mode fast");
  PipeDreamResult result = PipeDreamPartition(input.graph, UpstreamOptions(request));
  for (size_t s = 0; s < result.stages.size(); ++s)
    for (int node : result.stages[s].nodes) input.graph.nodes[node].stage = static_cast<int>(s);
  return MakeReport(input.graph, result);
}

static Json ToJson(const Explanation& e) {
  return {{"stage", e.stage},
          {"binds", e.binds},
          {"next_best", std::isfinite(e.next_best) ? Json(e.next_best) : Json(nullptr)},
          {"next_best_proven", e.next_best_proven}};
}

// Shortens a node's description to a word: "Conv2d" for Conv2d(3, 64, ...), or a module's
// submodule.
static std::string WordFor(std::string description) {
  constexpr size_t kLongest = 40;
  if (description.starts_with("Module(") && description.ends_with(")"))
    description = description.substr(7, description.size() - 8);
  size_t end = std::min({description.find_first_of("(,"), kLongest, description.size()});
  while (end > 0 && end < description.size() && (description[end] & 0xC0) == 0x80) --end;  // UTF-8
  return description.substr(0, end);
}

// Adds operations to the ends of stages: users do not recognize nodes by number.
static void NameEnds(const PartitionInput& input, PartitionReport& report) {
  std::map<std::string, std::string> words;
  for (const GraphNode& node : input.graph.nodes) words[node.id] = WordFor(node.description);
  if (input.kind == PartitionInput::kTarnawski)
    for (const Json& node : input.instance["nodes"])
      if (node.contains("name") && node["name"].is_string())
        words[node["id"].dump()] = WordFor(node["name"].get<std::string>());
  for (PartitionReport::Stage& stage : report.stages)
    for (std::string* end : {&stage.first, &stage.last})
      if (const std::string word = words[*end]; !word.empty()) *end += " " + word;
}

static double LargestMemory(const PartitionProblem& problem) {
  double most = 0;
  for (const DeviceClass& device : problem.devices)
    if (!device.host && device.count > 0) most = std::max(most, device.memory_bytes);
  return most;
}

static PartitionProblem WithMemory(PartitionProblem problem, double factor) {
  for (DeviceClass& device : problem.devices)
    if (device.memory_bytes > 0) device.memory_bytes *= factor;  // 0 times infinity is NaN
  return problem;
}

// Returns the smallest factor, within 2 %, by which all memories have to grow for the fast search
// to find a partition; infinity if no memory suffices or none is limited.
static double MemoryFactor(const PartitionProblem& problem) {
  if (!(LargestMemory(problem) > 0 && std::isfinite(LargestMemory(problem)))) return kInfinity;
  SolveOptions options;
  options.exact = false;
  // Returns the factor that suffices for the partition found with memories grown by `factor`.
  auto enough = [&](double factor) {
    const PartitionResult found = SolvePartition(WithMemory(problem, factor), options);
    double most = found.feasible ? 0 : kInfinity;
    for (const PartitionStage& stage : found.stages) {
      const DeviceClass& device = problem.devices[static_cast<size_t>(stage.device_class)];
      if (!device.host) most = std::max(most, stage.memory_bytes / device.memory_bytes);
    }
    return most;
  };
  double low = 1, high = enough(kInfinity);
  while (std::isfinite(high) && high > low * 1.02) {
    const double middle = std::sqrt(low * high), found = enough(middle);
    if (std::isfinite(found))
      high = std::min(found, middle);
    else
      low = middle;
  }
  return high;
}

// Returns text that says how much memory would suffice, when nothing fits.
static std::string MemoryThatFits(const PartitionProblem& problem, PartitionReport& report) {
  const double factor = MemoryFactor(problem);
  if (!std::isfinite(factor)) return "";
  const double bytes = std::ceil(LargestMemory(problem) * std::max(factor, 1.0));
  report.more["memory_that_fits"] = bytes;
  const bool alike =
      std::all_of(problem.devices.begin(), problem.devices.end(), [&](const DeviceClass& device) {
        return device.host || device.count == 0 || device.memory_bytes == LargestMemory(problem);
      });
  const std::string size = SizeText(static_cast<int64_t>(bytes));
  return alike ? "  " + size + " on each device would be enough: --memory " +
                     std::to_string(static_cast<int64_t>(bytes)) + "\n"
               : "  " + size +
                     " on the largest device would be enough, with the others in proportion\n";
}

static void Partition(const PartitionRequest& request) {
  auto start = std::chrono::steady_clock::now();
  auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  PartitionInput input = ReadInput(request);
  PartitionReport report;
  std::string explanation;
  if (request.mode == PartitionMode::kPipeDream) {
    report = LikePipeDream(request, input);
    report.seconds = seconds();
  } else {
    ProfileProblem profile;
    PartitionProblem problem = MakeProblem(input, request, profile);
    SolveOptions options;
    options.exact = request.mode == PartitionMode::kExact;
    options.max_seconds = request.time_limit;
    const bool step = request.objective == PartitionObjective::kStep;
    if (options.exact && !step && request.time_limit < kInfinity)
      options.improve_seconds = request.time_limit;
    if (step && request.microbatches == 1 << 30)
      throw UsageError("--microbatches", "--objective step needs the number of microbatches");
    Explanation e;
    PartitionResult result =
        step ? SolveStep(problem, options, {request.schedule, request.microbatches}, &e)
             : SolvePartition(problem, options);
    report = MakeReport(problem, result);
    report.seconds = seconds();
    if (step) {
      report.more["schedule"] = request.schedule;
      report.more["microbatches"] = request.microbatches;
    }
    if (input.has_graph() && result.feasible) {
      SetStages(input.graph, profile, result);
    }
    if (input.kind == PartitionInput::kGraphText && result.feasible) {
      std::vector<std::string> inputs;
      for (int node : profile.inputs) inputs.push_back(input.graph.nodes[node].id);
      auto& first = report.stages[0].nodes;
      first.insert(first.begin(), inputs.begin(), inputs.end());
      if (!inputs.empty()) report.stages[0].first = inputs[0];
    }
    if (!result.feasible) explanation = MemoryThatFits(problem, report);
    if (request.explain && result.feasible) {
      if (!step) e = ExplainPartition(problem, result, options);
      explanation = ExplainText(report, e);
      report.more["explain"] = ToJson(e);
    }
  }
  report.mode = request.mode;
  if (request.writes && report.feasible) WriteOutputs(request, input, report);
  NameEnds(input, report);
  if (request.json)
    PrintJson(ReportJson(report));
  else
    std::cout << ReportTable(report) << explanation;
  if (request.writes) (request.json ? std::cerr : std::cout) << Written(request, input, report);
  if (!report.feasible) throw CLI::RuntimeError(kFailure);
}

static void AddDeviceOptions(CLI::App& app, PartitionRequest& r) {
  app.add_option("--devices", r.devices,
                 "maximum number of devices (default: 16 if --stages is not given either)")
      ->check(AtLeast(0, 1 << 20));
  app.add_option("--cpus", r.cpus, "maximum number of CPUs")->check(AtLeast(0, 1 << 20));
  app.add_option("-s,--memory,--memory_size", r.memory,
                 "memory of each device: bytes, or a size such as 16GB");
  app.add_option("-n,--all_num_machines", r.machines,
                 "number of machines at each level, innermost first")
      ->expected(1, -1);
  app.add_option("-b,--network_bandwidths", r.bandwidths,
                 "bandwidth of each level in bytes per second (default: as measured, or 1e9)")
      ->expected(1, -1);
  app.add_option("--speeds", r.speeds, "speed of each device, relative to the profile")
      ->delimiter(',');
  app.add_option("--memories", r.memories, "memory of each device")->delimiter(',');
  app.add_option("--links", r.links,
                 "bandwidth of each device's link, or of the links from each device to each other "
                 "one, row by row, in multiples of -b")
      ->delimiter(',');
  app.add_option("--latency", r.latency, "fixed cost of one transfer")->check(NumberAtLeast(0));
}

// Options that only `--mode pipedream` has.
static void AddPipeDreamOptions(CLI::App& app, PartitionRequest& r) {
  app.add_option("--activation_compression_ratio", r.activation_compression_ratio,
                 "pipedream: count transfers, divided by this ratio")
      ->check(NumberMoreThan(0));
  app.add_flag("--straight_pipeline", r.straight_pipeline, "pipedream: do not replicate stages");
  app.add_flag("--use_memory_constraint", r.use_memory_constraint,
               "pipedream: stay within the memory of -s");
  app.add_flag("--use_fewer_machines", r.use_fewer_machines,
               "pipedream: use fewer machines if that is as good");
}

void AddPartitionCommand(CLI::App& app) {
  auto request = std::make_shared<PartitionRequest>();
  PartitionRequest& r = *request;
  app.add_option(
         "file", r.file,
         "a package, a profile (JSON or PipeDream's graph text), or an instance of Tarnawski "
         "et al.")
      ->required();
  app.add_option_function<std::string>(
         "--mode", [&r](const std::string& text) { r.mode = PartitionModeFromText(text); },
         "exact (default): the best cut; fast: close to it; pipedream: PipeDream's cut")
      ->check(CLI::IsMember({"exact", "fast", "pipedream"}));
  app.add_option("--stages", r.stages, "number of stages (default: whichever is best)")
      ->check(AtLeast(1, 1 << 20));
  AddDeviceOptions(app, r);
  app.add_option("--replicas", r.replicas, "maximum number of replicas of a stage (default: 1)")
      ->check(AtLeast(1));
  app.add_option("--together", r.together, "nodes to keep in one stage: a,b (repeatable)");
  app.add_option("--shared", r.shared,
                 "nodes that share a weight, and exchange its gradient if in different stages: a,b "
                 "(repeatable)");
  app.add_option_function<std::string>(
         "--objective",
         [&r](const std::string& text) { r.objective = PartitionObjectiveFromText(text); },
         "time to minimize: that of the slowest stage (bottleneck, the default), or of a "
         "simulated step of --schedule (step)")
      ->check(CLI::IsMember({"bottleneck", "step"}));
  app.add_option("--schedule", r.schedule, "schedule for --objective step (default: 1f1b)")
      ->check(CLI::IsMember(ScheduleNames()));
  app.add_option("--in-flight", r.in_flight,
                 "microbatches whose activations are held: as in 1f1b, as in gpipe, or one")
      ->check(CLI::IsMember({"1f1b", "gpipe", kOneInFlight}));
  app.add_option("--microbatches", r.microbatches, "microbatches per step")->check(AtLeast(1));
  app.add_option("--optimizer-state", r.optimizer_state,
                 "bytes of optimizer state per byte of parameters (default: 2, as for Adam)")
      ->check(NumberAtLeast(0));
  app.add_option("--time-limit", r.time_limit,
                 "seconds to search for a proof, and then for a better partition")
      ->check(NumberAtLeast(0));
  AddPipeDreamOptions(app, r);
  app.add_option("--microbatch-size", r.microbatch,
                 "measure the package again, with this many samples per microbatch (default: use "
                 "its profile.json)")
      ->check(AtLeast(1));
  app.add_option("--microbatch", r.microbatch)->check(AtLeast(1))->group("");  // former name
  app.add_option("--input", r.input,
                 "measure the package again, with the inputs in this safetensors file");
  app.add_option("--repeat", r.repeat,
                 "measurements of each time, if a package is measured (default: 20)")
      ->check(AtLeast(1));
  app.add_flag("--explain", r.explain,
               "explain what limits the result, and what the next best cut would cost");
  app.add_flag("--json", r.json, "print JSON and nothing else");
  auto* output = app.add_option("-o,--output", r.output,
                                "folder for the graph with stages, its picture and the confs");
  app.add_flag("--force", r.force,
               "also replace files that were edited, or that partition did not write");
  app.callback([request, output] {
    request->writes = output->count() > 0;
    Partition(*request);
  });
}

}  // namespace pipewright
