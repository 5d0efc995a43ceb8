// `pipewright plan`: makes or checks a plan.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/read_file.h"
#include "base/process/messages.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/commands/validate_plan.h"
#include "cli/commands/zb_auto_plan.h"
#include "cli/numbers.h"
#include "formats/package/package_files.h"
#include "plan/actions.h"
#include "plan/loop_text.h"
#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/multi_step.h"
#include "plan/plan_text.h"
#include "plan/run/insert_loads.h"
#include "plan/run/run_plan.h"
#include "plan/schedules/schedule.h"
#include "plan/schedules/table.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/measure.h"
#include "plan/stage_graph.h"
#include "runtime/trial/check_code.h"

namespace pipewright {

namespace {

struct PlanRequest {
  std::string package, job, conf;  // for the plan of a run, or else:
  std::string schedule, stages, placement, costs, costs_out, output, validate;
  int ranks = 0, microbatches = 0, steps = 0;  // steps 0: one, or the file's number
  std::string offload;
  double memory = -1, offload_memory = 0;
  bool compute_only = false, forward_only = false, loop = false;
};

bool IsFile(const std::string& schedule) {
  return schedule.find('/') != std::string::npos || schedule.ends_with(".csv");
}

// Returns the kind of the schedule; for a file, a kind that depends on numbers alone.
ScheduleKind KindOf(const PlanRequest& request) {
  const ScheduleKind* kind = FindSchedule(request.schedule);
  return kind ? *kind : ScheduleKind{};
}

// Returns the schedule. `graph` receives the ranks of its stages, including replicas without a
// microbatch.
Plan ScheduleOf(const PlanRequest& request, StageGraph& graph) {
  int stages = 0;
  if (!request.stages.empty()) {
    const char* end = request.stages.data() + request.stages.size();
    auto [last, error] = std::from_chars(request.stages.data(), end, stages);
    if (error != std::errc() || last != end || stages < 1)
      throw UsageError("--stages", "\"" + request.stages + "\" is not a number of stages");
  }
  if (IsFile(request.schedule)) {
    Plan plan = ReadPlanOrLoop(ReadFile(request.schedule), request.schedule, request.steps);
    PrintNotes(plan);
    auto check = [&](int asked, int found, const char* what) {
      if (asked > 0 && asked != found)
        throw Error(request.schedule, "it has " + std::to_string(found) + " " + what + ", not " +
                                          std::to_string(asked));
    };
    check(request.ranks, static_cast<int>(plan.ranks.size()), "ranks");
    check(request.microbatches, plan.microbatches, "microbatches");
    check(stages, plan.stages, "stages");
    if (!request.placement.empty())
      throw UsageError("--placement", "a schedule file already says which rank runs which stage");
    graph = GraphOf(plan);
    if (request.forward_only) DropBackward(plan);
    return plan;
  }
  CheckScheduleName(request.schedule, "--schedule");
  if (request.ranks < 1) throw UsageError("--ranks", "is required to make a schedule");
  if (request.microbatches < 1)
    throw UsageError("--microbatches", "is required to make a schedule");
  ScheduleOptions options;
  options.forward_only = request.forward_only;
  StagePlacement placement;
  if (!request.placement.empty()) {
    // A list determines the number of stages by itself.
    if (stages == 0 && request.placement.find_first_of("0123456789") != std::string::npos)
      stages =
          1 + static_cast<int>(std::count(request.placement.begin(), request.placement.end(), ','));
    if (stages == 0) stages = DefaultStages(request.schedule, request.ranks);
    placement = ParsePlacement(request.placement, request.ranks, stages);
  }
  Plan plan = MakeSchedule(request.schedule, request.ranks, stages, request.microbatches, placement,
                           options);
  if (placement.empty())
    placement = ParsePlacement(DefaultPlacement(request.schedule), request.ranks, plan.stages);
  graph = ChainGraph(placement);
  return plan;
}

ZbRequest ZbRequestOf(const PlanRequest& request) {
  ZbRequest zb;
  zb.ranks = request.ranks;
  zb.microbatches = request.microbatches;
  zb.stages = request.stages;
  zb.placement = request.placement;
  zb.costs = request.costs;
  zb.costs_out = request.costs_out;
  if (request.memory >= 0) zb.memory = request.memory;
  zb.forward_only = request.forward_only;
  return zb;
}

// Checks the peak memory of each rank, in the units of the costs, or 1 per activation without
// costs.
void CheckMemory(const PlanRequest& request, const Plan& plan) {
  Costs costs = request.costs.empty() ? UnitCosts() : ReadCosts(request.costs);
  CheckStages(costs, plan.stages);
  if (request.memory < 0) return;
  Figures figures = Measure(plan, costs, Simulate(plan, costs));
  for (size_t r = 0; r < figures.ranks.size(); ++r)
    if (figures.ranks[r].peak_bytes > request.memory) {
      std::string most = Plain(figures.ranks[r].peak_bytes);
      throw Error(
          "schedule " + request.schedule,
          "rank " + std::to_string(r) + " holds up to " + most + ", more than --memory " +
              Plain(request.memory),
          "use fewer microbatches in flight (1f1b, zb-h1, v-half, v-min), or zb-auto, which "
          "plans within the limit");
    }
}

// Writes `text` to the requested output.
void PutText(const PlanRequest& request, const std::string& text, const std::string& numbers) {
  if (request.output.empty()) {
    std::cout << text;
    return;
  }
  WriteFile(request.output, text);
  std::cerr << request.output << ": " << numbers << "\n";
}

void Put(const PlanRequest& request, const Plan& plan) {
  PutText(request, WritePlan(plan), Numbers(plan));
}

// Number of consecutive steps that suffices to see which of them repeat.
constexpr int kFoldSteps = 8;

void PutLoop(const PlanRequest& request, const StepLoop& loop) {
  int around = StepsAround(loop);
  int steps = request.steps ? request.steps : around + 1;
  if (steps < around)
    throw UsageError("--steps",
                     std::to_string(steps) + " is too few: the prologue and epilogue take " +
                         std::to_string(around));
  PutText(request, WriteLoop(loop, steps), Numbers(Unroll(loop, steps)));
}

void PlanRun(const PlanRequest& request) {
  if (request.job.empty())
    throw UsageError("plan", "a package needs a job: pipewright plan PACKAGE JOB");
  Job job = ReadJob(request.job);
  if (!request.schedule.empty()) SetSchedule(job, request.schedule);
  RunPlan run =
      MakeRunPlan(request.package, request.conf, job, request.ranks, request.forward_only);
  for (const std::string& warning : CheckCode(request.package, run.manifest))
    PrintWarning(warning);
  for (const std::string& warning : run.warnings) PrintWarning(warning);
  std::vector<std::string> read = PackageFiles(request.package, run.manifest);
  read.insert(read.end(), {request.job, request.conf});
  if (!request.output.empty()) CheckWritable(request.output, read);
  Put(request, run.plan);
}

// Parses --offload. Weights have the sizes in the costs, or size 1 each without costs.
Offload OffloadFromOptions(const PlanRequest& request, const Plan& plan) {
  Offload offload;
  if (request.offload.empty()) return offload;
  if (request.compute_only)
    throw UsageError("--offload", "a schedule has no LOAD and EVICT: leave out --compute-only");
  for (const std::string& part : Split(request.offload, ',')) {
    int stage = -1;
    auto [last, error] = std::from_chars(part.data(), part.data() + part.size(), stage);
    if (error != std::errc() || last != part.data() + part.size() || stage < 0)
      throw UsageError("--offload", "\"" + part + "\" is not a stage");
    offload.stages.push_back(stage);
  }
  std::sort(offload.stages.begin(), offload.stages.end());
  offload.memory = request.offload_memory;
  if (request.costs.empty()) return offload;
  Costs costs = ReadCosts(request.costs);
  CheckStages(costs, plan.stages);
  for (int s = 0; s < plan.stages; ++s) offload.weights.push_back(CostsOf(costs, s, -1).weights);
  return offload;
}

void MakeAndPrintPlan(const PlanRequest& request) {
  StageGraph graph;
  Plan schedule;
  StepLoop loop;
  const ScheduleKind kind = KindOf(request);
  if (kind.asynchronous) {
    if (request.ranks < 1 || request.microbatches < 1)
      throw UsageError("--ranks and --microbatches", "are required to make a schedule");
    if (kind.weight_versions > 1 && request.microbatches < request.ranks)
      throw Error("schedule " + request.schedule,
                  std::to_string(request.microbatches) + " microbatches on " +
                      std::to_string(request.ranks) +
                      " ranks, and a step needs at least one for each rank",
                  "the nearest that works: --microbatches " + std::to_string(request.ranks));
    if (!request.placement.empty() || request.forward_only ||
        (!request.stages.empty() && request.stages != std::to_string(request.ranks)))
      throw Error("schedule " + request.schedule, "it runs stage s on rank s, forward and backward",
                  "leave out --placement, --stages and --forward-only");
    loop = AsynchronousOneForwardOneBackward(request.ranks, request.microbatches);
    graph = ChainGraph(ParsePlacement("loop", request.ranks, request.ranks));
    schedule = Unroll(loop, 1);
  } else if (kind.searched) {
    schedule = PlanZbAuto(ZbRequestOf(request));
    graph = GraphOf(schedule);
  } else {
    schedule = ScheduleOf(request, graph);
  }
  try {
    ValidateSchedule(schedule, graph);
  } catch (const Error& e) {
    if (!IsFile(request.schedule)) throw;
    throw Error(request.schedule, e.what());
  }
  // Steps that overlap hold most when the pipeline is full.
  if (!kind.searched) {
    const int full = 2 + request.ranks / std::max(1, request.microbatches),
              steps = request.loop ? full : std::min(full, std::max(1, request.steps));
    const bool overlaps = kind.asynchronous && request.memory >= 0;
    CheckMemory(request, overlaps ? Unroll(loop, steps) : schedule);
  }
  if (!kind.asynchronous) loop = Synchronous(schedule);
  bool several = schedule.steps > 1;  // a file may hold several steps
  Offload offload = OffloadFromOptions(request, schedule);
  auto lowered = [&](int steps) {
    // A schedule that is not changed keeps its spelling.
    bool asis = several || (steps == 1 && !kind.asynchronous);
    Plan plan = asis ? schedule : Unroll(loop, steps);
    if (request.compute_only)
      return HasTransfers(plan) || HasSteps(plan) ? ComputeOnly(plan) : plan;
    plan = Lower(plan, graph);
    if (kind.asynchronous) SetVersions(plan, kind.weight_versions - 1);
    if (!offload.stages.empty()) InsertLoads(plan, offload);
    Validate(plan, graph);
    return plan;
  };
  if (!request.loop) return Put(request, lowered(std::max(1, request.steps)));
  if (request.forward_only) throw UsageError("--loop", "a forward-only plan has no steps");
  PutLoop(request, request.compute_only
                       ? loop
                       : Fold(lowered(request.ranks / request.microbatches + kFoldSteps)));
}

// Rejects options that the requested operation would silently ignore.
void AllowOnly(const CLI::App& app, const std::string& what,
               const std::vector<std::string>& allowed) {
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && option->get_name() != what &&
        std::find(allowed.begin(), allowed.end(), option->get_name()) == allowed.end())
      throw UsageError(option->get_name(), "cannot be combined with " + what,
                       "options that can be combined with it: " + Join(allowed, ", "));
}

}  // namespace

void AddPlanCommand(CLI::App& app) {
  auto request = std::make_shared<PlanRequest>();
  app.add_option("package", request->package, "package of a run to plan (needs a job)");
  app.add_option("job", request->job, "job file of the run");
  app.add_option("--conf", request->conf, "conf of the run (default: PACKAGE/conf/mp_conf.json)");
  app.add_option("--schedule", request->schedule,
                 "schedule to make: " + Join(AllScheduleNames(), ", ") + ", or a CSV file");
  app.add_option("--ranks", request->ranks, "number of ranks")
      ->check(AtLeast(1, 1 << 20));
  app.add_option("--stages", request->stages,
                 "number of stages (default: the schedule's own); for zb-auto, also auto");
  app.add_option("--microbatches", request->microbatches, "microbatches per step")
      ->check(AtLeast(1, 1000000));
  app.add_option("--placement", request->placement,
                 "which rank runs which stage: loop, v, both, or \"0,1,1,0\"; replicas: \"0+1,2\"");
  app.add_option("--costs", request->costs,
                 "JSON file with the costs of actions (see docs/reference/costs.md)");
  app.add_option("--costs-out", request->costs_out,
                 "with zb-auto and --stages auto: write the costs of the stages that it made");
  app.add_option("--memory", request->memory,
                 "memory limit per rank, in the unit of --costs (without --costs: activations)")
      ->check(NumberAtLeast(0));
  app.add_option("--steps", request->steps, "number of consecutive optimizer steps")
      ->check(AtLeast(1));
  app.add_flag("--loop", request->loop,
               "write prologue, body and epilogue instead of every step "
               "(see docs/reference/plan.md)");
  app.add_option("--offload", request->offload,
                 "stages whose weights are loaded and evicted, such as 1,2: adds LOAD and EVICT");
  app.add_option(
         "--offload-memory", request->offload_memory,
         "room for these weights on each rank, in the unit of --costs, or without --costs in "
         "stages (default: the two largest)")
      ->check(NumberMoreThan(0));
  app.add_flag("--forward-only", request->forward_only, "leave out backward and optimizer steps");
  app.add_flag("--compute-only", request->compute_only,
               "write or check a schedule without transfers");
  app.add_option("-o,--output", request->output, "the file to write (default: standard output)");
  app.add_option("--validate", request->validate,
                 "check a plan, and report the first rule that it breaks");
  app.callback([request, &app] {
    if (!request->validate.empty()) {
      AllowOnly(app, "--validate", {"--costs", "--memory", "--steps", "--compute-only"});
      return ValidatePlan({request->validate, request->costs, request->steps, request->memory,
                           request->compute_only});
    }
    if (!request->package.empty()) {
      AllowOnly(
          app, "a package",
          {"package", "job", "--conf", "--schedule", "--ranks", "--forward-only", "--output"});
      return PlanRun(*request);
    }
    if (!request->conf.empty())
      throw UsageError("--conf", "requires a package: pipewright plan PACKAGE JOB --conf FILE");
    if (!request->costs_out.empty() && (!KindOf(*request).searched || request->stages != "auto"))
      throw UsageError("--costs-out", "requires --schedule zb-auto --stages auto");
    if (request->offload_memory > 0 && request->offload.empty())
      throw UsageError("--offload-memory", "requires --offload");
    if (request->schedule.empty())
      throw UsageError("plan", "nothing to do: PACKAGE JOB, --schedule or --validate is required",
                       "schedules: " + Join(AllScheduleNames(), ", "));
    MakeAndPrintPlan(*request);
  });
}

}  // namespace pipewright
