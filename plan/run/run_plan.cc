#include "plan/run/run_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "plan/actions.h"
#include "plan/lowering/lower.h"
#include "plan/lowering/validate.h"
#include "plan/multi_step.h"
#include "plan/placement/process_bytes.h"
#include "plan/placement/residence.h"
#include "plan/placement/tensor_ids.h"
#include "plan/plan_text.h"
#include "plan/run/insert_loads.h"
#include "plan/schedules/schedule.h"
#include "plan/schedules/table.h"
#include "plan/search/zb_auto.h"
#include "plan/stage_graph.h"

namespace pipewright {

namespace {

Conf ReadConfFor(const std::string& package, const std::string& file, const Manifest& manifest,
                 int ranks) {
  const std::string path = ConfOfRun(package, file, ranks);
  Conf conf = ReadConf(path);
  int named = 0;
  for (const std::vector<int>& replicas : conf.stage_to_ranks)
    for (int rank : replicas) named = std::max(named, rank + 1);
  if (ranks != 0 && named != ranks) {
    int modules = static_cast<int>(manifest.modules.size());
    throw Error(path + ":" + JsonPosition(ReadFile(path), {"stage_to_rank_map"}),
                "the conf is for " + Counted(named, "rank") + ", not for " + Counted(ranks, "rank"),
                ranks > modules
                    ? "start " + Counted(named, "rank") + "; the package has " +
                          Counted(modules, "module") +
                          ", and more ranks than that need replicas in the conf, or more cuts"
                    : "start " + Counted(named, "rank") + ", or make a conf for " +
                          Counted(ranks, "rank") +
                          " and run with --conf conf.json:\n    pipewright conf " + package +
                          " --ranks " + std::to_string(ranks) + " -o conf.json");
  }
  std::vector<std::pair<int, int>> edges;
  for (const ValueInfo& value : manifest.values)
    if (value.producer >= 0)
      for (int consumer : value.consumers) edges.emplace_back(value.producer, consumer);
  CheckConf(conf, static_cast<int>(manifest.modules.size()), named, edges, path);
  return conf;
}

Plan ZbAutoPlan(const Job& job, const StageGraph& graph) {
  Costs costs = job.costs.empty() ? UnitCosts() : ReadCosts(job.costs);
  CheckStages(costs, graph.stages);
  ZbAutoOptions options;
  options.placement = graph.ranks_of;
  options.memory_name = job.path + ": memory";
  if (job.memory > 0) options.memory = static_cast<double>(job.memory);
  ZbAutoResult found = ZbAuto(costs, graph.ranks, graph.stages, job.microbatches, options);
  return std::move(found.plan);
}

// Keeps buffers and the weights that a run trains in memory. `where`: the conf, which must not
// offload more than is possible; "": a device map, which has been checked.
void KeepTrained(RunPlan& run, const std::string& where) {
  std::vector<bool> frozen(run.conf.stage_to_ranks.size()), trained = frozen;
  for (size_t m = 0; m < run.on_disk.size(); ++m)
    for (size_t w = 0; w < run.on_disk[m].size(); ++w) {
      if (!run.on_disk[m][w]) continue;
      const WeightInfo& weight = run.manifest.modules[m].held[w];
      run.on_disk[m][w] = weight.kind == WeightKind::kParameter && !weight.requires_grad;
      if (weight.kind == WeightKind::kParameter)
        (weight.requires_grad ? trained : frozen)[run.conf.module_to_stage[m]] = true;
    }
  for (int stage : run.conf.offloaded_stages)
    if (trained[stage] && !frozen[stage] && !where.empty())
      throw Error(where,
                  "stage " + std::to_string(stage) + " is offloaded and has no frozen weights",
                  "what is trained stays in memory: freeze some of it (\"freeze\" in the job), or "
                  "leave the stage out");
  std::erase_if(run.conf.offloaded_stages, [&](int stage) { return !frozen[stage]; });
}

// Keeps tied weights in memory if another name of the tensor is in memory anyway.
void KeepTied(RunPlan& run, const std::vector<std::vector<int>>& ids) {
  auto ranks = [&](size_t m) { return run.conf.stage_to_ranks[run.conf.module_to_stage[m]]; };
  std::map<int, std::set<int>> resident;  // tensor -> ranks
  for (size_t m = 0; m < run.on_disk.size(); ++m)
    for (size_t w = 0; w < run.on_disk[m].size(); ++w)
      if (!run.on_disk[m][w])
        for (int rank : ranks(m)) resident[ids[m][w]].insert(rank);
  for (size_t m = 0; m < run.on_disk.size(); ++m)
    for (size_t w = 0; w < run.on_disk[m].size(); ++w) {
      const std::set<int>& there = resident[ids[m][w]];
      const std::vector<int> users = ranks(m);
      if (std::all_of(users.begin(), users.end(), [&](int rank) { return there.count(rank) > 0; }))
        run.on_disk[m][w] = false;
    }
}

// Counts each tensor once: for its stage, or for the rank if several of the rank's stages use it.
void CountWeights(const RunPlan& run, const std::vector<std::vector<int>>& ids, Offload& offload) {
  std::map<int, std::pair<double, std::set<int>>> tensors;  // bytes and stages
  for (size_t m = 0; m < run.on_disk.size(); ++m)
    for (size_t w = 0; w < run.on_disk[m].size(); ++w) {
      if (!run.on_disk[m][w]) continue;
      auto& [bytes, stages] = tensors[ids[m][w]];
      bytes = static_cast<double>(BytesOf(run.manifest.modules[m].held[w]));
      stages.insert(run.conf.module_to_stage[m]);
    }
  offload.weights.assign(run.conf.stage_to_ranks.size(), 0);
  for (const auto& [id, tensor] : tensors) {
    std::map<int, int> users;  // rank -> stages
    for (int stage : tensor.second)
      for (int rank : run.conf.stage_to_ranks[stage]) ++users[rank];
    for (int stage : tensor.second) {
      const std::vector<int>& ranks = run.conf.stage_to_ranks[stage];
      if (std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return users[rank] < 2; }))
        offload.weights[stage] += tensor.first;
    }
    for (const auto& [rank, count] : users) {
      if (count < 2) continue;
      offload.held.resize(
          std::max<size_t>(offload.held.size(), static_cast<size_t>(run.graph.ranks)));
      offload.held[rank] += tensor.first;
    }
  }
}

// Returns the stages that the conf offloads, with the bytes of each that are loaded and evicted.
Offload OffloadOf(const RunPlan& run, bool forward_only) {
  Offload offload;
  offload.step = offload.weight_grad = forward_only;
  offload.stages = run.conf.offloaded_stages;
  offload.memory = static_cast<double>(run.conf.offload_memory);
  if (!forward_only) {
    const std::vector<bool> learning = LearningStages(run.manifest, run.conf);
    for (size_t s = 0; s < learning.size(); ++s)
      if (!learning[s]) offload.forward_only.push_back(static_cast<int>(s));
  }
  CountWeights(run, TensorIds(run.manifest, !forward_only), offload);
  return offload;
}

// Throws Error that names an edited entry: a second optimizer step of a stage where other stages
// have one, or the only entry with a stage or microbatch that the run does not have.
void CheckEntries(const Job& job, const Plan& plan, const StageGraph& graph) {
  std::map<std::pair<size_t, int>, std::vector<std::string>> steps;  // by rank and stage
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (size_t p = 0; p < plan.ranks[r].size(); ++p)
      if (const Action& a = plan.ranks[r][p]; a.kind == ActionKind::kStep)
        steps[{r, a.stage}].push_back(PlaceText(static_cast<int>(r), p, a));
  const bool once = std::any_of(steps.begin(), steps.end(),
                                [](const auto& entry) { return entry.second.size() == 1; });
  for (const auto& [where, places] : steps)
    if (once && places.size() > 1)
      throw Error(job.plan + ": " + places[0],
                  "rule \"step\": the rank has " + std::to_string(places.size()) +
                      " optimizer steps of this stage, also " + places.back() +
                      ", and others have one");
  std::vector<std::string> wrong;
  for (size_t r = 0; r < plan.ranks.size(); ++r)
    for (size_t p = 0; p < plan.ranks[r].size() && wrong.size() < 2; ++p) {
      const Action& a = plan.ranks[r][p];
      int stage = std::max({a.stage, a.overlap_stage, IsTransfer(a.kind) ? PeerOf(a) : -1});
      int microbatch = std::max(a.microbatch, a.overlap_microbatch);
      if (stage >= graph.stages || microbatch >= job.microbatches)
        wrong.push_back(PlaceText(static_cast<int>(r), p, a));
    }
  if (wrong.size() == 1)
    throw Error(job.plan + ": " + wrong[0],
                "rule \"range\": the run has " + Counted(graph.stages, "stage") + " and " +
                    Counted(job.microbatches, "microbatch"));
}

// Reads and checks the plan in the job's file: a schedule, or a whole plan.
Plan PlanOfFile(const Job& job, const StageGraph& graph, const Offload& offload) {
  Plan plan = ReadPlan(ReadFile(job.plan), job.plan);
  auto check = [&](int found, int expected, const char* what) {
    if (found != expected)
      throw Error(job.plan, "the plan has " + std::to_string(found) + " " + what +
                                ", the run has " + std::to_string(expected));
  };
  check(static_cast<int>(plan.ranks.size()), graph.ranks, "ranks");
  CheckEntries(job, plan, graph);
  check(plan.stages, graph.stages, "stages");
  check(plan.microbatches, job.microbatches, "microbatches");
  check(plan.steps, 1, "optimizer steps");
  try {
    if (HasTransfers(plan)) {
      Validate(plan, graph), CheckLoads(plan, offload);
      if (!HasSteps(plan))
        throw Error("rule \"step\"", "no rank has an optimizer STEP, so the run would not train",
                    "at the end of each rank's line, add a REDUCE_GRAD for each of its stages that "
                    "has replicas or shares a weight, and then a STEP for each of its stages; or "
                    "leave out SEND and RECV: then all are added");
    } else {
      ValidateSchedule(plan, graph);
    }
  } catch (const Error& e) {
    throw Error(job.plan, e.what());
  }
  return plan;
}

// Returns the kind of the job's schedule; that of a plan file has the default properties.
ScheduleKind KindOf(const Job& job) {
  const ScheduleKind* kind = job.plan.empty() ? FindSchedule(job.schedule) : nullptr;
  return kind ? *kind : ScheduleKind{};
}

// Returns the origin of the schedule: the command line may override the job's.
std::string ScheduleName(const Job& job) {
  const Json written = job.text.empty() ? Json::object() : ParseJson(job.text, job.path);
  const bool own = written.value("schedule", Job().schedule) == job.schedule;
  return own ? job.path : "--schedule";
}

Plan MakePlan(const Job& job, const StageGraph& graph, const Offload& offload, bool forward_only) {
  Plan plan;
  if (!job.plan.empty() && !forward_only) {
    plan = PlanOfFile(job, graph, offload);
    if (HasTransfers(plan)) return plan;
  } else if (KindOf(job).searched && !forward_only) {
    plan = ZbAutoPlan(job, graph);
  } else {
    ScheduleOptions options;
    options.forward_only = forward_only, options.of_run = true;
    // Without a backward, all schedules are the same: each stage runs as soon as its input arrives.
    // But offloaded weights are to be loaded once for all microbatches.
    const char* sweep = offload.stages.empty() ? kForwardSchedule : kOffloadedForwardSchedule;
    try {
      plan = MakeSchedule(forward_only ? sweep : job.schedule, graph.ranks, graph.stages,
                          job.microbatches, graph.ranks_of, options);
    } catch (const Error& e) {
      throw Error(ScheduleName(job), e.what());
    }
  }
  plan = Lower(plan, graph);
  if (!offload.stages.empty()) InsertLoads(plan, offload);
  Validate(plan, graph);
  return plan;
}

}  // namespace

Plan MakeForwardPlan(const Job& job, const RunPlan& run) {
  return MakePlan(job, run.graph, OffloadOf(run, true), /*forward_only=*/true);
}

std::vector<bool> LearningStages(const Manifest& manifest, const Conf& conf) {
  std::vector<bool> learning(conf.stage_to_ranks.size());
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const ModuleInfo& module = manifest.modules[m];
    if (std::any_of(module.held.begin(), module.held.end(),
                    [](const WeightInfo& weight) { return weight.requires_grad; }) ||
        std::any_of(module.outputs.begin(), module.outputs.end(),
                    [&](int id) { return manifest.values[id].gradient; }))
      learning[conf.module_to_stage[m]] = true;
  }
  return learning;
}

// Records the stages that recompute all their modules in the plan, for its readers.
static void NameRecomputed(const RecomputeJob& job, RunPlan& run) {
  const std::vector<bool> learning = LearningStages(run.manifest, run.conf);
  std::vector<bool> whole(learning.size(), true);
  for (size_t m = 0; m < run.manifest.modules.size(); ++m)
    if (!job.all && std::count(job.modules.begin(), job.modules.end(), static_cast<int>(m)) == 0)
      whole[static_cast<size_t>(run.conf.module_to_stage[m])] = false;
  std::vector<int>& named = run.plan.recompute;
  for (int s = 0; s < static_cast<int>(learning.size()); ++s)
    if (learning[s] && (whole[s] || std::count(job.stages.begin(), job.stages.end(), s) > 0))
      named.push_back(s);
  std::sort(named.begin(), named.end());
  named.erase(std::unique(named.begin(), named.end()), named.end());
}

// Returns notes about a learning rate that does not become what the run's length suggests.
static std::vector<std::string> NotesOfRate(const Job& job) {
  const RateJob rate = RateOfRun(job.optimizer.rate, job.steps);
  const std::string where = job.path + ": optimizer.lr_schedule";
  if (rate.warmup > job.steps)
    return {where + ".warmup: " + std::to_string(rate.warmup) +
            " steps of warm-up are more than the " + Counted(job.steps, "step") +
            " of the run: the learning rate never reaches \"lr\""};
  const int64_t end = std::max(rate.steps, rate.warmup + 1);  // counted from 0
  if (!rate.HasLength() || end >= job.steps - 1 || RateFactor(rate, end) != 0) return {};
  return {where + ": the learning rate is 0 from step " + std::to_string(end + 1) +
          " on: the schedule has " + Counted(rate.steps, "step") + ", and the run " +
          std::to_string(job.steps) + "; set its \"steps\" to " + std::to_string(job.steps) +
          ", or an \"end\" above 0"};
}

RunPlan MakeRunPlan(const std::string& package, const std::string& conf, const Job& job, int ranks,
                    bool forward_only, const std::string& device_map,
                    const std::optional<std::vector<std::string>>& outputs) {
  RunPlan run;
  run.manifest = ReadManifest(package);
  if (outputs) KeepOutputs(run.manifest, *outputs, "--outputs");
  CheckGroups(run.manifest, job.optimizer, job.path + ": optimizer");
  if (!forward_only) Freeze(run.manifest, job.freeze, job.path + ": freeze");
  if (device_map.empty()) {
    run.conf = ReadConfFor(package, conf, run.manifest, ranks);
    run.on_disk = WeightsOfStages(run.manifest, run.conf);
  } else {
    const DeviceMap map = ReadDeviceMap(ReadJson(device_map), device_map);
    Residence residence = ReadResidence(run.manifest, map, device_map, ranks);
    for (std::string& warning :
         ExceededBudgets(run.manifest, map, residence, device_map, !forward_only))
      residence.warnings.push_back(std::move(warning));
    if (!forward_only) CheckFrozen(run.manifest, map, device_map);
    run.conf = std::move(residence.conf);
    run.on_disk = std::move(residence.on_disk);
    run.warnings = std::move(residence.warnings);
  }
  if (!forward_only) {
    for (std::string& note : UntrainedModules(run.manifest))
      run.warnings.push_back(std::move(note));
    for (std::string& note : NotesOfRate(job)) run.warnings.push_back(std::move(note));
  }
  if (!forward_only) KeepTrained(run, device_map.empty() ? ConfOfRun(package, conf) : "");
  for (size_t m = 0; m < run.on_disk.size(); ++m)
    if (run.manifest.modules[m].skipped) run.on_disk[m].assign(run.on_disk[m].size(), false);
  KeepTied(run, TensorIds(run.manifest, !forward_only));
  run.graph = MakeStageGraph(run.manifest, run.conf);
  Offload offload = OffloadOf(run, forward_only);
  if (device_map.empty()) offload.memory_name = ConfOfRun(package, conf) + ": offload.memory";
  run.plan = IsAsynchronous(job) && !forward_only
                 ? MakeAsynchronousPlan(job, run, StepsInARow(job, 0))
                 : MakePlan(job, run.graph, offload, forward_only);
  if (!forward_only) NameRecomputed(job.recompute, run);
  return run;
}

bool IsAsynchronous(const Job& job) { return KindOf(job).asynchronous; }

int OlderVersions(const Job& job) { return std::max(0, KindOf(job).weight_versions - 1); }

int64_t StepsInARow(const Job& job, int64_t step) {
  int64_t count = std::min<int64_t>(1000, job.steps - step);
  for (int64_t every :
       {job.checkpoint.folder.empty() ? 0 : job.checkpoint.every, job.validation.every})
    if (every > 0) count = std::min(count, every - step % every);
  return std::max<int64_t>(1, count);
}

Plan MakeAsynchronousPlan(const Job& job, const RunPlan& run, int64_t steps) {
  const StageGraph& graph = run.graph;
  auto refuse = [&](const std::string& what, const std::string& cure = "") {
    throw Error(ScheduleName(job) + ": schedule " + job.schedule, what, cure);
  };
  bool chain = graph.stages == graph.ranks;
  for (int s = 0; chain && s < graph.stages; ++s) chain = graph.ranks_of[s] == std::vector<int>{s};
  if (!chain) refuse("it runs stage s on rank s", "make such a conf: pipewright conf");
  if (!run.conf.offloaded_stages.empty())
    refuse(
        "weights are on disk, and with one stage on each rank none would ever leave memory",
        "keep them in memory (cpu, or no \"offload\" in the conf), or train with 1f1b or bfs and "
        "several stages on a rank");
  if (!graph.shared.empty())
    refuse("stages share weights, whose gradients would be of different steps",
           "put the modules that share them into one stage");
  if (job.optimizer.clip_norm > 0 || job.loss_scale.used)
    refuse("all ranks would have to meet in every step for clip_norm and loss_scale");
  if (job.losses.size() > 1) refuse("it supports only one loss");
  if (job.accumulate > 1) refuse("it does not support \"accumulate\"", "use more microbatches");
  if (OlderVersions(job) > 0 && job.microbatches < graph.ranks)
    refuse(Counted(job.microbatches, "microbatch") + " on " + Counted(graph.ranks, "rank") +
           ", and a step needs as many as are in flight");
  Plan plan = Unroll(AsynchronousOneForwardOneBackward(graph.ranks, job.microbatches),
                     static_cast<int>(steps));
  plan = Lower(plan, graph);
  SetVersions(plan, KindOf(job).weight_versions - 1);
  Validate(plan, graph);
  return plan;
}

}  // namespace pipewright
