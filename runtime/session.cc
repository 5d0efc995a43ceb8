#include "runtime/session.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/process/messages.h"
#include "base/text.h"
#include "base/torch_error.h"
#include "formats/package/edited_lines.h"
#include "formats/weights/checkpoint.h"
#include "ops/op_library.h"
#include "plan/plan_text.h"
#include "runtime/cpu/memory_settings.h"
#include "runtime/cpu/progress_hook.h"
#include "runtime/exec/phase.h"
#include "runtime/exec/same_files.h"
#include "runtime/module/module_code.h"
#include "runtime/module/stored_weights.h"
#include "runtime/not_finite.h"
#include "runtime/rank_device.h"
#include "runtime/recorded/choose_body.h"
#include "runtime/resume.h"
#include "runtime/session_devices.h"
#include "runtime/session_losses.h"
#include "runtime/trial/lost_gradients.h"
#include "runtime/trial/traced_sizes.h"
#include "runtime/weights.h"

namespace pipewright {

namespace {

// Refuses what this runtime cannot run, before anything starts.
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
  // Autograd would keep weights that are evicted: their stages keep what they received instead.
  for (size_t m = 0; m < session.run.on_disk.size(); ++m)
    if (std::count(session.run.on_disk[m].begin(), session.run.on_disk[m].end(), true))
      for (int other = 0; other < modules; ++other)
        if (stage_of[other] == stage_of[m]) recompute[other] = true;
  return recompute;
}

// Collects what must be the same on all ranks, by name.
std::vector<std::pair<const char*, std::string>> MustAgree(const Session& session,
                                                           const AgreedFields& agreed) {
  std::string package = WriteManifest(session.run.manifest), fields;
  for (const ModuleInfo& module : session.run.manifest.modules)
    package += ReadFile(session.options.package + "/" + module.code);
  for (const auto& [name, value] : agreed)
    fields += name + " " + std::to_string(value.size()) + " " + value + "\n";
  return {{"package", package},
          {"conf", WriteConf(session.run.conf)},
          {"job", session.job.text},
          {"options", fields},
          {"plan", WritePlan(session.run.plan)}};
}

// Returns what checkpoints record so that a resumed run can tell what has changed: the training
// data and the code.
std::vector<Found> KeptForResume(const Session& session, const std::vector<Found>& found) {
  std::vector<Found> kept;
  const std::string data = "source 0, ";
  for (const Found& one : found)
    if (one.key.rfind(data, 0) == 0) {
      kept.push_back(one);
      kept.back().key.erase(0, data.size());
    }
  const Manifest& manifest = session.run.manifest;
  for (const ModuleInfo& module : manifest.modules) {
    // With other weights, inputs or outputs, it is a module of a different cut.
    std::vector<std::string> names;
    for (const WeightInfo& weight : module.held) names.push_back(weight.name);
    for (const std::vector<int>* ids : {&module.inputs, &module.outputs})
      for (int id : *ids) names.push_back(manifest.values[static_cast<size_t>(id)].name);
    const std::string file = session.options.package + "/" + module.code;
    kept.push_back({"code of " + module.name + " with " + HexHash(Join(names, " ")), file,
                    HexHash(ReadFile(file)), ""});
  }
  return kept;
}

std::vector<int> LossValues(const Session& session) {
  std::vector<int> ids;
  for (const LossJob& loss : session.job.losses)
    ids.push_back(session.run.manifest.outputs[static_cast<size_t>(loss.output)]);
  return ids;
}

// Actions that compute, and STEP, are reported as busy.
bool CountsAsBusy(ActionKind kind) {
  return kind <= ActionKind::kOverlap || kind == ActionKind::kStep;
}

// Runs what may fail on this rank alone; adds `place` to its errors.
template <typename F>
void At(const TorchStages& stages, const std::string& place, F&& run) {
  try {
    run();
  } catch (const Aborted&) {
    throw;  // another rank says why
  } catch (const std::exception& e) {
    throw Error(place + ", " + stages.Explained(WithoutBacktrace(e.what())));
  }
}

}  // namespace

Session::Session(Transport& transport) : transport(transport) {}
Session::~Session() = default;

std::shared_ptr<const std::vector<TensorSpec>> Session::Shapes(
    const std::vector<TensorSpec>& inputs) {
  return shapes_->Of(inputs);
}

bool Session::OnDevices() const {
  return std::any_of(devices.begin(), devices.end(),
                     [](const auto& name) { return name != "cpu"; });
}

void Session::Open(const SessionOptions& asked) {
  options = asked;
  Phase(transport, "reading", [&] {
    run = MakeRunPlan(options.package, options.conf, job, transport.size(), !options.training,
                      options.device_map, options.outputs);
    if (options.training && job.validation.every > 0) forward_plan_ = MakeForwardPlan(job, run);
    CheckLosses(*this, options.training);
    edited = EditedCode(options.package, run.manifest);
    edited_places = EditedPlaces(options.package, run.manifest);
  });
  visible_ = DevicesOfRanks(transport);
  devices = ChooseDevices(*this, visible_);
}

void Session::CheckSources(const std::vector<Microbatches*>& sources) {
  std::vector<std::vector<TensorSpec>> inputs;
  // Ranks may exchange sizes here, so this comes before anything that can fail on one rank alone.
  for (Microbatches* source : sources) inputs.push_back(source->Specs(0, 0));
  const auto first = shapes_->Of(inputs[0]);
  CheckRunnable(*this, *first);
  if (transport.rank() == 0 && !edited.empty())
    for (std::string& changed : ChangedOutputs(options.package, run.manifest, inputs[0]))
      run.warnings.push_back(std::move(changed));
  for (size_t i = 0; i < sources.size(); ++i)
    CheckTargets(*this, *shapes_->Of(inputs[i]), *sources[i]);
  // Otherwise, the run would end where an epoch does.
  for (Microbatches* source : sources)
    for (const std::vector<TensorSpec>& smaller : source->SmallerSpecs()) shapes_->Of(smaller);
  // Values that are known to be integers by now have no gradient. If the model file says otherwise,
  // an edit made them integers, and FindWarnings must see them before that changes.
  auto leave_integers = [&](bool edited) {
    for (size_t id = 0; id < first->size(); ++id)
      if ((*first)[id].known && !at::isFloatingType((*first)[id].type) &&
          !at::isComplexType((*first)[id].type) &&
          (edited || run.manifest.values[id].dtype.empty()))
        run.manifest.values[id].gradient = false;
  };
  leave_integers(false);
  if (transport.rank() == 0) FindWarnings(inputs[0]);
  leave_integers(true);
}

void Session::FindWarnings(const std::vector<TensorSpec>& inputs) {
  if (const std::string mixed = FindTracedSizes(options.package, run.manifest, inputs);
      !mixed.empty())
    run.warnings.push_back(mixed);
  if (options.training)
    for (std::string& lost :
         LostGradients(options.package, run.manifest, inputs, LossValues(*this)))
      run.warnings.push_back(std::move(lost));
}

void Session::ShowWarnings() const {
  if (!edited.empty())
    PrintNote("edited since the model was compiled: " + edited_places +
              ". The run computes what that says, and not what the model file does" +
              (options.training ? "; saved weights say so in their metadata" : ""));
  if (OnDevices()) PrintNote(HostsText(devices));
  for (const std::string& warning : run.warnings) PrintWarning(warning);
}

void Session::Check(const std::vector<Microbatches*>& sources) {
  Phase(transport, "reading", [&] {
    shapes_ = std::make_unique<ShapeCache>(options.package, run.manifest);
    CheckSources(sources);
    recompute_ = RecomputedModules(*this);
  });
}

void Session::Load(const std::vector<Microbatches*>& sources, const AgreedFields& agreed) {
  if (!shapes_) try {
      Check(sources);
    } catch (...) {
      if (transport.rank() == 0) ShowWarnings();  // they may say why
      throw;
    }
  if (transport.rank() == 0) ShowWarnings();
  std::vector<std::pair<const char*, std::string>> fields;
  Phase(transport, "reading", [&] { fields = MustAgree(*this, agreed); });
  for (const auto& [what, text] : fields) Agree(transport, Hash(text), what);
  std::vector<Found> found;
  Phase(transport, "reading", [&] { found = Reads(sources); });
  const std::vector<Found> all = AgreeOn(transport, found);
  Phase(transport, "reading", [&] { read = KeptForResume(*this, all); });
  Phase(transport, "loading", [&] {
    stages = std::make_unique<TorchStages>(
        StageSettings{options, job, run, forward_plan_, recompute_, *shapes_, transport,
                      c10::Device(devices[static_cast<size_t>(transport.rank())])});
    if (!options.resumes) LoadFirstWeights();
  });
}

// Returns what this rank reads, and all files of the package and of the given weights that it can
// see: each rank reads other weights, but all must be of one package.
std::vector<Found> Session::Reads(const std::vector<Microbatches*>& sources) const {
  std::vector<Found> found = FoundEnvironment();
  auto add = [&](const std::string& key, const std::string& path, bool whole = false) {
    std::error_code none;
    if (std::filesystem::is_regular_file(path, none))
      found.push_back(FoundFile(key, path, whole || options.verify_files));
  };
  for (const ModuleInfo& module : run.manifest.modules)
    add(module.weights, options.package + "/" + module.weights);
  add("samples", options.package + "/samples.safetensors");
  for (const std::string& library : run.manifest.op_libraries)
    add(library, LoadOpLibrary(library), /*whole=*/true);
  add("--device-map", options.device_map);
  if (!options.weights.empty()) {
    const Checkpoint weights = OpenCheckpoint(options.weights);
    for (size_t i = 0; i < weights.files.size(); ++i)
      add("--weights " + std::to_string(i), weights.files[i]->path());
  }
  // Keeps hashes of samples of a file besides that of the whole, so that a run compares its files
  // with a checkpoint that was written with or without --verify-files.
  for (size_t i = 0; i < sources.size(); ++i)
    for (const bool whole : {false, true}) {
      if (whole && !options.verify_files) continue;
      for (Found& one : sources[i]->Reads(whole)) {
        one.key = "source " + std::to_string(i) + ", " + one.key + (whole ? " as a whole" : "");
        found.push_back(std::move(one));
      }
    }
  return found;
}

// Loads the weights of a run that does not resume from a checkpoint.
void Session::LoadFirstWeights() {
  if (options.weights.empty())
    return LoadPackageWeights(options.package, run.manifest, *stages, run.on_disk);
  const LoadedWeights loaded = LoadWeights(options.weights, run.manifest, *stages, run.on_disk);
  if (transport.rank() != 0) return;
  if (!loaded.foreign.empty())
    PrintWarning(DescribeForeign(options.weights, loaded.foreign));
  if (!loaded.edited.empty() && loaded.edited != edited)
    PrintWarning(options.weights + ": it was trained in a package with edited code (" +
                 loaded.edited + "), which is not that of " + options.package +
                 ": what is computed here differs");
}

RunCheckpoint Session::Restore(const std::string& from, bool apart) {
  RunCheckpoint checkpoint = Resume(from, *this, apart);
  if (checkpoint.path.empty()) Phase(transport, "loading", [&] { LoadFirstWeights(); });
  done_ = checkpoint.step;
  return checkpoint;
}

void Session::MakeExecutor() { StepBy(run.plan, *stages); }

void Session::StepBy(const Plan& plan, StageBody& body) {
  ExecutorOptions executor;
  executor.trace_memory = options.trace_memory;
  executor_ =
      std::make_unique<Executor>(plan, run.graph, stages->groups(), body, Values(), executor);
}

void Session::EvaluateBy(const Plan& plan, StageBody& body, Microbatches& source,
                         int64_t minibatch) {
  auto own = std::exchange(
      evaluator_, std::make_unique<Executor>(plan, run.graph, stages->groups(), body, Values()));
  Evaluation evaluation;
  Evaluate(source, minibatch, evaluation);
  evaluator_ = std::move(own);
}

Transport& Session::Values() {
  if (links_) return *links_;
  return transport;
}

void Session::Start() {
  DevicePeers peers;
  Phase(transport, "starting", [&] {
    CheckCopiesOnDevices(*this);
    peers = SessionPeers(*this, forward_plan_, visible_);
  });
  links_ = Connect(*this, peers);
  stages->ReceiveOver(Values());
  Phase(transport, "starting", [&] {
    MakeExecutor();
    if (options.training && job.validation.every > 0)
      evaluator_ =
          std::make_unique<Executor>(forward_plan_, run.graph, stages->groups(), *stages, Values());
  });
  // Copies that differ at the start would still differ after training.
  Phase(transport, "comparing shared weights", [&] {
    CheckSharedCopies(run.manifest, run.conf, *stages, run.on_disk, transport);
  });
  DropLoadingCode();
}

void Session::AwaitDevice() { stages->AwaitDevice(); }

void Session::AddBusy() {
  for (const TraceEvent& event : executor_->trace())
    if (CountsAsBusy(event.action.kind)) busy += event.end - event.start - event.waited;
}

// Runs a plan once. The first step, and the first sweep of an evaluation, begin cold: until a rank
// has run everything once, its values go through host memory. In that time, CUDA and its libraries
// allocate and load what they need, for which they may wait until the device has done everything,
// including transfers that cannot end until other ranks go on.
void Session::Run(Executor& executor, int64_t step, bool last) {
  if (!links_) return executor.RunStep(step, last);
  const bool evaluates = &executor == evaluator_.get();
  bool& warm = evaluates ? warm_evaluation_ : warm_;
  links_->SetActive(warm || !executor.ColdOnHostOnly());
  stages->ExchangeOnDevices(warm ? links_->peers() : DevicePeers{});
  executor.RunStep(step, last, /*cold=*/!warm);
  links_->LaunchAll();
  warm = warm || last || evaluates;
}

// Throws AgreedError after the first step if it trained nothing. Collective.
void Session::CheckTrained(int64_t step) {
  if (trains_ || stages->loss_stages().empty()) return;
  for (const std::string& trained : transport.AllGather(stages->updater().trained() ? "1" : "0"))
    trains_ = trains_ || trained == "1";
  if (trains_) return;
  const int stage = stages->loss_stages()[0];
  throw AgreedError("step " + std::to_string(step + 1) + ", rank " +
                    std::to_string(run.conf.stage_to_ranks[stage][0]) + ", stage " +
                    std::to_string(stage) +
                    ": the loss does not depend on any trainable weight\n  train what is frozen "
                    "(\"freeze\", requires_grad), or take the loss from another output");
}

// Runs an uncommitted step again, and checks all values.
void Session::Watch(Microbatches& source, int64_t step) {
  stages->Watch();
  for (int i = 0; i < job.accumulate; ++i) {
    stages->SetStep(source, step * job.accumulate + i);
    Run(*executor_, step, /*last=*/false);
  }
  AwaitDevice();
}

void Session::Step(Microbatches& source, int64_t step) {
  const int minibatches = options.training ? job.accumulate : 1;
  losses.clear();
  terms.clear();
  busy = 0;
  loss_scale = stages->updater().loss_scale().factor;
  stages->updater().Begin(step, int64_t{minibatches} * job.microbatches);
  std::optional<BadLoss> bad_loss;
  bool finite = true;
  ProgressHook hook(transport);
  At(*stages, "step " + std::to_string(step + 1), [&] {
    for (int i = 0; i < minibatches; ++i) {
      stages->SetStep(source, step * minibatches + i);
      const bool last = i + 1 == minibatches;
      Run(*executor_, step, last);
      if (last && options.training) stages->MeasureGradients();
      stages->ReadNumbers();
      if (!bad_loss) bad_loss = FindBadLoss(*this, step * minibatches + i);
      GatherLosses(*this);
      KeepLosses(*this);
      AddBusy();
    }
    if (!options.training) return;
    outcome = stages->updater().Agree(transport, bad_loss.has_value());
    finite = !MustStop(*this);
    if (!finite) return Watch(source, step);
    stages->updater().Commit(outcome);
    stages->MergeBuffers(Values());
    if (links_ && job.merge_buffers) AwaitDevice();
    done_ = step + 1;
  });
  if (!finite) ThrowNotFinite(*this, source, step, bad_loss);
  if (options.training) CheckTrained(step);
}

void Session::Steps(Microbatches& source, int64_t step, int64_t count) {
  if (run.plan.steps != count) {
    executor_.reset();
    run.plan = MakeAsynchronousPlan(job, run, count);
    MakeExecutor();
  }
  stages->SetStep(source, step, count);
  busy = 0;
  ProgressHook hook(transport);
  At(*stages, "steps " + std::to_string(step + 1) + " to " + std::to_string(step + count), [&] {
    Run(*executor_, step, /*last=*/true);
    stages->ReadNumbers();
  });
  done_ = step + count;
  CheckTrained(step);
  losses.clear();
  terms.clear();
  KeepLosses(*this);
  AddBusy();
}

void Session::Evaluate(Microbatches& source, int64_t minibatch, Evaluation& evaluation) {
  if (options.training && !evaluator_)
    throw Error(job.path, "has no validation, so there is no plan to evaluate by",
                "set validation.every before the session is opened");
  Executor& executor = evaluator_ ? *evaluator_ : *executor_;
  stages->SetStep(source, minibatch);
  if (options.training) stages->SetTraining(false);
  ProgressHook hook(transport);
  At(*stages, "evaluation, minibatch " + std::to_string(minibatch + 1), [&] {
    // Validation does not count as a step of the training.
    Run(executor, options.training ? done_ : minibatch, /*last=*/!options.training);
    stages->ReadNumbers();
    GatherLosses(*this);
  });
  if (options.training) stages->SetTraining(true);
  AddLosses(*this, evaluation);
}

void Session::Save(const std::string& path) {
  Phase(transport, "saving", [&] {
    if (options.training) CheckSavedWeights(*this);
  });
  SaveWeights(path, run.manifest, run.conf, *stages, transport, edited);
}

void Session::SaveGradients(const std::string& path) {
  pipewright::SaveGradients(path, run.manifest, run.conf, *stages, transport);
}

std::string DescribeBodies(const Session& session) {
  std::vector<std::string> mine(session.run.manifest.modules.size());
  std::vector<bool> mine_asked(mine.size());  // the module's body is autograd, as was asked for
  for (const auto& [module, state] : session.stages->Bodies()) {
    mine[static_cast<size_t>(module)] =
        state.lists ? "lists of operations" : "autograd (" + state.refusal + ")";
    mine_asked[static_cast<size_t>(module)] = state.asked;
  }
  std::vector<std::string> bodies(mine.size());
  std::vector<bool> autograd_asked(mine.size());
  // The environment variable need not be the same on all hosts.
  bool asked = false;
  const Json own = {{"asked", BodyAskedFor(session.job.body).has_value()}, {"bodies", mine},
                    {"autograd", mine_asked}};
  for (const std::string& text : session.transport.AllGather(own.dump())) {
    const Json of_rank = Json::parse(text);
    asked = asked || of_rank["asked"].get<bool>();
    for (size_t m = 0; m < bodies.size(); ++m) {
      if (!bodies[m].empty()) continue;
      bodies[m] = of_rank["bodies"][m].get<std::string>();
      autograd_asked[m] = of_rank["autograd"][m].get<bool>();
    }
  }
  if (!asked || std::all_of(autograd_asked.begin(), autograd_asked.end(), [](bool b) { return b; }))
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
  return Join(parts, "; ") +
         (session.OnDevices() ? " on " + session.devices[static_cast<size_t>(rank)] : "");
}

}  // namespace pipewright
