#include "runtime/session.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "plan/error.h"
#include "plan/plan_text.h"
#include "plan/text.h"
#include "plan/torch_error.h"
#include "runtime/burned_sizes.h"
#include "runtime/exec/phase.h"
#include "runtime/lost_gradients.h"
#include "runtime/process_memory.h"
#include "runtime/progress_hook.h"
#include "runtime/recorded/choice.h"
#include "runtime/session_losses.h"
#include "runtime/weights.h"

namespace pipewright {

namespace {

// What this runtime cannot run, found before anything starts.
void CheckRunnable(const Session& session, const std::vector<TensorSpec>& specs) {
  const Conf& conf = session.run.conf;
  auto ranks = [&](int module) { return conf.stage_to_ranks[conf.module_to_stage[module]]; };
  for (size_t id = 0; id < specs.size(); ++id) {
    const ValueInfo& value = session.run.manifest.values[id];
    if (specs[id].known || value.producer < 0) continue;
    for (int consumer : value.consumers)
      if (ranks(consumer) != ranks(value.producer))
        throw Error("value \"" + value.name + "\"",
                    "its sizes [" + Join(value.shape, ", ") +
                        "] depend on the data, so that it cannot be sent from module " +
                        std::to_string(value.producer) + " to module " + std::to_string(consumer),
                    "put both modules on one rank, or cut elsewhere");
  }
}

std::vector<bool> RecomputedModules(const Session& session) {
  const RecomputeJob& job = session.job.recompute;
  const std::vector<int>& stage_of = session.run.conf.module_to_stage;
  const int modules = static_cast<int>(session.run.manifest.modules.size());
  auto check = [&](const char* what, const std::vector<int>& list, int count) {
    for (int i : list)
      if (i >= count)
        throw Error(
            session.job.path + ": recompute." + what,
            "there is no " + std::to_string(i) + ": they are 0 to " + std::to_string(count - 1));
  };
  check("modules", job.modules, modules);
  check("stages", job.stages, session.run.graph.stages);
  std::vector<bool> recompute(modules, job.all);
  for (int m : job.modules) recompute[m] = true;
  const std::vector<int>& planned = session.run.plan.recompute;
  for (int m = 0; m < modules; ++m)
    if (std::count(planned.begin(), planned.end(), stage_of[m]) ||
        std::count(job.stages.begin(), job.stages.end(), stage_of[m]))
      recompute[m] = true;
  // Autograd would hold on to weights that go away: their stages keep what they received instead.
  for (size_t m = 0; m < session.run.on_disk.size(); ++m)
    if (std::count(session.run.on_disk[m].begin(), session.run.on_disk[m].end(), true))
      for (int other = 0; other < modules; ++other)
        if (stage_of[other] == stage_of[m]) recompute[other] = true;
  return recompute;
}

// What must be the same on all ranks, by what to call it.
std::vector<std::pair<const char*, uint64_t>> Fingerprints(const Session& session,
                                                           const SessionOptions& options) {
  std::string package = WriteManifest(session.run.manifest), job;
  for (const ModuleInfo& module : session.run.manifest.modules)
    package += ReadFile(options.package + "/" + module.code);
  if (std::filesystem::exists(session.job.path)) job = ReadFile(session.job.path);
  return {{"package", Hash(package)},
          {"conf", Hash(WriteConf(session.run.conf))},
          {"job", Hash(job)},
          {"options", Hash(options.agreed)},
          {"plan", Hash(WritePlan(session.run.plan))}};
}

std::vector<int> LossValues(const Session& session) {
  std::vector<int> ids;
  for (const LossJob& loss : session.job.losses)
    ids.push_back(session.run.manifest.outputs[static_cast<size_t>(loss.output)]);
  return ids;
}

// Of a session that trains and validates.
void MakeEvaluator(Session& session) {
  session.evaluator =
      std::make_unique<Executor>(session.forward_plan, session.run.graph, session.stages->groups(),
                                 *session.stages, *session.transport);
}

}  // namespace

void OpenSession(Session& session, const SessionOptions& options, Transport& transport,
                 std::function<std::vector<TensorSpec>(int64_t, int)> specs,
                 std::function<at::Tensor(int, int64_t, int)> input,
                 std::function<void(int, int, const at::Tensor&)> output) {
  session.training = options.training;
  StageSettings settings;
  std::vector<std::pair<const char*, uint64_t>> fingerprints;
  Phase(transport, "reading", [&] {
    session.run = MakeRunPlan(options.package, options.conf, session.job, transport.size(),
                              !options.training, options.device_map);
    if (options.training && session.job.validation.every > 0)
      session.forward_plan = MakeForwardPlan(session.job, session.run);
    if (options.has_loss) CheckLosses(session, options.training);
  });
  if (options.read_data) options.read_data(session);
  Phase(transport, "reading", [&] {
    auto shapes = std::make_shared<ShapeCache>(options.package, session.run.manifest);
    const std::vector<TensorSpec> given = specs(0, 0);
    // Ranks may tell each other sizes here: before anything fails on one of them alone.
    const std::vector<Fed> feeds = options.fed ? options.fed(session) : std::vector<Fed>();
    auto first = shapes->Of(given);
    CheckRunnable(session, *first);
    for (const Fed& fed : feeds) CheckTargets(session, *shapes->Of(fed.inputs), fed);
    // Where the model file does not say dtypes, integers are known by now: they have no gradient.
    for (size_t id = 0; id < first->size(); ++id)
      if ((*first)[id].known && !at::isFloatingType((*first)[id].type) &&
          !at::isComplexType((*first)[id].type))
        session.run.manifest.values[id].gradient = false;
    settings.specs = [shapes, specs = std::move(specs)](int64_t step, int microbatch) {
      return shapes->Of(specs(step, microbatch));
    };
    if (transport.rank() == 0) {
      if (const std::string mixed = FindBurnedSizes(options.package, session.run.manifest, given);
          !mixed.empty())
        session.run.warnings.push_back(mixed);
      if (options.training)
        for (std::string& lost : LostGradients(options.package, session.run.manifest, given,
                                               LossValues(session)))
          session.run.warnings.push_back(std::move(lost));
      for (const std::string& warning : session.run.warnings)
        std::fprintf(stderr, "pipewright-run: warning: %s\n", warning.c_str());
    }
    settings.recompute = RecomputedModules(session);
    session.transport = &transport;
    fingerprints = Fingerprints(session, options);
  });
  for (const auto& [what, hash] : fingerprints) Agree(transport, hash, what);
  Phase(transport, "loading", [&] {
    settings.manifest = &session.run.manifest;
    settings.package = options.package;
    settings.conf = &session.run.conf;
    settings.graph = &session.run.graph;
    settings.rank = transport.rank();
    settings.training = options.training;
    settings.microbatches = session.job.microbatches;
    settings.minibatches = session.job.accumulate;
    settings.exact_reduce = session.job.exact_reduce;
    settings.merge_buffers = session.job.merge_buffers;
    settings.seed = session.job.seed;
    settings.body = BodyAskedFor(session.job.body).value_or(BodyChoice::kAuto);
    if (options.has_loss) settings.losses = session.job.losses;
    settings.optimizer = session.job.optimizer;
    if (!options.training) settings.optimizer.state_on_disk = false;
    settings.loss_scale = session.job.loss_scale;
    settings.loss_weight = options.loss_weight;
    settings.stepped = options.stepped;
    settings.target_name = options.target_name;
    settings.older_versions = OlderVersions(session.job);
    settings.stop_on_nan = session.job.stop_on_nan;
    settings.accuracy = session.job.accuracy;
    settings.keep_gradients = options.keep_gradients;
    settings.weights = options.weights;
    if (!session.run.conf.offloaded_stages.empty()) {
      settings.on_disk = &session.run.on_disk;
      for (const Plan* plan : {&session.run.plan, &session.forward_plan})
        if (!plan->ranks.empty())
          settings.lists.push_back(plan->ranks[static_cast<size_t>(transport.rank())]);
    }
    settings.memory = [&transport](size_t bytes) { return transport.Memory(bytes); };
    settings.input = std::move(input);
    settings.output = std::move(output);
    session.stages = std::make_unique<TorchStages>(std::move(settings));
    if (options.weights.empty()) return;
    const std::vector<std::string> foreign =
        LoadWeights(options.weights, session.run.manifest, *session.stages, session.run.on_disk);
    if (transport.rank() == 0 && !foreign.empty())
      std::fprintf(stderr,
                   "pipewright-run: warning: %s: %s of it the package does not have, \"%s\" for "
                   "one: perhaps it is another model's\n",
                   options.weights.c_str(), Counted(foreign.size(), "tensor").c_str(),
                   foreign[0].c_str());
  });
  ExecutorOptions executor;
  if (options.restore) executor.first_step = options.restore(session);
  Phase(transport, "starting", [&] {
    session.executor =
        std::make_unique<Executor>(session.run.plan, session.run.graph, session.stages->groups(),
                                   *session.stages, transport, executor);
    if (options.training && session.job.validation.every > 0) MakeEvaluator(session);
  });
  // Copies that start apart would be trained apart.
  Phase(transport, "comparing shared weights", [&] {
    CheckSharedCopies(session.run.manifest, session.run.conf, *session.stages, session.run.on_disk,
                      transport);
  });
  DropLoadingCode();
}

static bool IsCompute(ActionKind kind) {
  return kind <= ActionKind::kOverlap || kind == ActionKind::kStep;
}

// After the first step: that anything was trained in it. Collective.
static void CheckTrained(Session& session, Transport& transport, int64_t step) {
  if (session.trains || session.stages->loss_stages().empty()) return;
  for (const std::string& trained :
       transport.AllGather(session.stages->updater().trained() ? "1" : "0"))
    session.trains = session.trains || trained == "1";
  if (session.trains) return;
  const int stage = session.stages->loss_stages()[0];
  throw AgreedError("step " + std::to_string(step + 1) + ", rank " +
                    std::to_string(session.run.conf.stage_to_ranks[stage][0]) + ", stage " +
                    std::to_string(stage) +
                    ": the loss does not depend on any trainable weight\n  train what is frozen "
                    "(\"freeze\", requires_grad), or take the loss from another output");
}

void RunStep(Session& session, Transport& transport, int64_t step) {
  const int minibatches = session.training ? session.job.accumulate : 1;
  session.losses.clear();
  session.terms.clear();
  session.busy = 0;
  session.loss_scale = session.stages->updater().loss_scale().factor;
  session.stages->updater().Begin(step, int64_t{minibatches} * session.job.microbatches);
  ProgressHook hook(transport);
  try {
    for (int i = 0; i < minibatches; ++i) {
      session.stages->SetStep(step * minibatches + i);
      session.executor->RunStep(i + 1 == minibatches);
      GatherLosses(session);
      KeepLosses(session);
      for (const TraceEvent& event : session.executor->trace())
        if (IsCompute(event.action.kind)) session.busy += event.end - event.start - event.waited;
    }
    if (session.training) session.outcome = session.stages->updater().Finish(transport);
    if (session.training) session.stages->MergeBuffers(transport);
  } catch (const Aborted&) {
    throw;  // another rank says why
  } catch (const std::exception& e) {
    throw Error("step " + std::to_string(step + 1) + ", " + WithoutBacktrace(e.what()));
  }
  if (session.training) CheckTrained(session, transport, step);
}

void RunSteps(Session& session, Transport& transport, int64_t step, int64_t count) {
  if (session.run.plan.steps != count) {
    session.executor.reset();
    session.run.plan = MakeAsynchronousPlan(session.job, session.run, count);
    ExecutorOptions options;
    options.first_step = step;
    session.executor =
        std::make_unique<Executor>(session.run.plan, session.run.graph, session.stages->groups(),
                                   *session.stages, transport, options);
  }
  session.stages->SetStep(step, count);
  session.busy = 0;
  ProgressHook hook(transport);
  try {
    session.executor->RunStep();
  } catch (const Aborted&) {
    throw;
  } catch (const std::exception& e) {
    throw Error("steps " + std::to_string(step + 1) + " to " + std::to_string(step + count) + ", " +
                WithoutBacktrace(e.what()));
  }
  CheckTrained(session, transport, step);
  session.losses.clear();
  session.terms.clear();
  KeepLosses(session);
  for (const TraceEvent& event : session.executor->trace())
    if (IsCompute(event.action.kind)) session.busy += event.end - event.start - event.waited;
}

void RunSweep(Session& session, int64_t minibatch, Evaluation& evaluation) {
  Executor& executor = session.evaluator ? *session.evaluator : *session.executor;
  session.evaluating = true;
  session.stages->SetStep(minibatch);
  if (session.training) session.stages->SetTraining(false);
  ProgressHook hook(*session.transport);
  try {
    executor.RunStep();
    GatherLosses(session);
  } catch (const Aborted&) {
    throw;
  } catch (const std::exception& e) {
    throw Error("evaluation, minibatch " + std::to_string(minibatch + 1) + ", " +
                WithoutBacktrace(e.what()));
  }
  if (session.training) session.stages->SetTraining(true);
  session.evaluating = false;
  AddLosses(session, evaluation);
}

std::string DescribeBodies(const Session& session, Transport& transport) {
  std::vector<std::string> mine(session.run.manifest.modules.size());
  for (const auto& [module, state] : session.stages->Bodies())
    mine[static_cast<size_t>(module)] =
        state.lists ? "lists of operations" : "autograd (" + state.refusal + ")";
  std::vector<std::string> bodies(mine.size());
  // A variable of the environment need not be the same on all hosts.
  bool asked = false;
  const Json own = {{"asked", BodyAskedFor(session.job.body).has_value()}, {"bodies", mine}};
  for (const std::string& text : transport.AllGather(own.dump())) {
    const Json of_rank = Json::parse(text);
    asked = asked || of_rank["asked"].get<bool>();
    for (size_t m = 0; m < bodies.size(); ++m)
      if (bodies[m].empty()) bodies[m] = of_rank["bodies"][m].get<std::string>();
  }
  if (!asked || std::all_of(bodies.begin(), bodies.end(),
                  [](const std::string& body) { return body == "autograd (asked for)"; }))
    return "";
  std::vector<std::string> parts;
  for (size_t m = 0; m < bodies.size();) {
    size_t last = m;
    while (last + 1 < bodies.size() && bodies[last + 1] == bodies[m]) ++last;
    parts.push_back((last > m ? "modules " : "module ") + std::to_string(m) +
                    (last > m ? "-" + std::to_string(last) : "") + ": " + bodies[m]);
    m = last + 1;
  }
  return Join(parts, "; ");
}

std::string Describe(const Session& session, int rank) {
  std::vector<std::string> parts;
  for (int stage = 0; stage < session.run.graph.stages; ++stage) {
    const std::vector<int>& replicas = session.run.conf.stage_to_ranks[stage];
    if (std::find(replicas.begin(), replicas.end(), rank) == replicas.end()) continue;
    std::vector<std::string> modules;
    const std::vector<int>& map = session.run.conf.module_to_stage;
    for (size_t m = 0; m < map.size(); ++m) {
      if (map[m] != stage) continue;
      size_t last = m;
      while (last + 1 < map.size() && map[last + 1] == stage) ++last;
      modules.push_back(std::to_string(m) + (last > m ? "-" + std::to_string(last) : ""));
      m = last;
    }
    bool one = modules.size() == 1 && modules[0].find('-') == std::string::npos;
    parts.push_back("stage " + std::to_string(stage) + (one ? ": module " : ": modules ") +
                    Join(modules, ", "));
  }
  return Join(parts, "; ");
}

}  // namespace pipewright
