#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "base/torch_error.h"
#include "ops/random_ops.h"
#include "plan/placement/tensor_ids.h"
#include "plan/run/run_plan.h"
#include "runtime/module/module.h"
#include "runtime/module/written_weights.h"
#include "runtime/optimizer/loss.h"
#include "runtime/recorded/choose_body.h"
#include "runtime/stage/stage_state.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"
#include "tensors/finite.h"

namespace pipewright {

size_t TorchStages::State::WeightIndex(int module, const std::string& name) const {
  const std::vector<WeightInfo>& held = manifest.modules[module].held;
  for (size_t i = 0; i < held.size(); ++i)
    if (held[i].name == name) return i;
  throw Error("module" + std::to_string(module), "holds no weight \"" + name + "\"");
}

std::vector<int> TorchStages::State::MessageValues(int edge, bool backward) const {
  if (!backward) return contents[edge].forward;
  std::vector<int> ids;
  for (const Contribution& contribution : contents[edge].backward)
    ids.push_back(contribution.value);
  return ids;
}

// In a forward-only run, the optimizer has nothing to put on disk.
static OptimizerJob OptimizerOf(const StageSettings& settings) {
  OptimizerJob optimizer = settings.job.optimizer;
  optimizer.rate = RateOfRun(optimizer.rate, settings.job.steps);
  if (!settings.options.training) optimizer.state_on_disk = false;
  return optimizer;
}

static FiniteCheck CheckOf(const StageSettings& settings) {
  if (!settings.options.training || !settings.job.stop_on_nan) return FiniteCheck::kNone;
  return IsAsynchronous(settings.job) ? FiniteCheck::kEach : FiniteCheck::kAll;
}

TorchStages::State::State(const StageSettings& s)
    : settings(s),
      job(s.job),
      manifest(s.run.manifest),
      conf(s.run.conf),
      graph(s.run.graph),
      device(s.device),
      clock(s.device),
      values(&s.transport),
      memory([&transport = s.transport](size_t bytes) { return transport.Memory(bytes); }),
      receive_buffers(memory, device),
      training(s.options.training),
      gradients(manifest, conf, s.transport.rank(), device,
                {.microbatches = job.microbatches,
                 .minibatches = job.accumulate,
                 .exact = job.exact_reduce,
                 .wide = job.optimizer.master_weights}),
      updater(manifest, OptimizerOf(s), job.loss_scale, s.options.keep_gradients, CheckOf(s)) {}

// Returns the weights of a module that another module has in memory.
static std::vector<at::Tensor> Known(const std::vector<int>& ids, const std::vector<bool>& on_disk,
                                     const std::map<int, at::Tensor>& tensors) {
  std::vector<at::Tensor> known(ids.size());
  for (size_t w = 0; w < ids.size(); ++w)
    if (auto found = tensors.find(ids[w]);
        found != tensors.end() && (on_disk.empty() || !on_disk[w]))
      known[w] = found->second;
  return known;
}

TorchStages::TorchStages(const StageSettings& settings)
    : state_(std::make_unique<State>(settings)) {
  state_->LookUpEdges();
  try {
    state_->LoadModules();
  } catch (const std::exception& e) {
    if (!SaysOutOfMemory(e.what())) throw;
    throw Error(state_->Explained(WithoutBacktrace(e.what()), /*loads=*/true));
  }
  state_->LookUpGradients();
  state_->CheckWrittenParameters();
  Recompute(settings.recompute);
}

void TorchStages::State::LookUpEdges() {
  std::vector<int> losses;
  for (const LossJob& loss : job.losses)
    if (training) losses.push_back(manifest.outputs[static_cast<size_t>(loss.output)]);
  contents = MakeEdgeContents(manifest, conf, graph, losses);
  edges_in.resize(graph.stages);
  edges_out.resize(graph.stages);
  for (size_t e = 0; e < graph.edges.size(); ++e) {
    edges_in[graph.edges[e].to].push_back(static_cast<int>(e));
    edges_out[graph.edges[e].from].push_back(static_cast<int>(e));
  }
}

void TorchStages::State::LoadModules() {
  const int rank = settings.transport.rank();
  const RunPlan& run = settings.run;
  modules_of.resize(graph.stages);
  const std::vector<std::vector<int>> ids = TensorIds(manifest, training);
  std::map<int, at::Tensor> tensors;  // in memory, by id
  const BodyChoice asked = BodyAskedFor(job.body).value_or(BodyChoice::kAuto);
  const BodyChoice body = training ? asked : BodyChoice::kAutograd;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const int stage = conf.module_to_stage[m], index = static_cast<int>(m);
    const std::vector<int>& ranks = conf.stage_to_ranks[stage];
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    if (manifest.modules[m].skipped) continue;
    modules_of[stage].push_back(index);
    running = index;
    static const std::vector<bool> none;
    const std::vector<bool>& on_disk = conf.offloaded_stages.empty() ? none : run.on_disk[m];
    LoadedModule& module =
        modules
            .emplace(index, LoadModuleWith(settings.options.package, manifest, index,
                                           {.source = WeightSource::kOther,
                                            .left_out = on_disk,
                                            .known = Known(ids[m], on_disk, tensors),
                                            .device = device}))
            .first->second;
    UseBody(module, body,
            !device.is_cpu() ? "runs on " + device.str()
            : std::find(on_disk.begin(), on_disk.end(), true) != on_disk.end() ? "weights on disk"
                                                                               : "");
    for (size_t w = 0; w < ids[m].size(); ++w)
      if (on_disk.empty() || !on_disk[w]) tensors.emplace(ids[m][w], module.weights[w]);
    pipewright::SetTraining(module, training);
    gradients.Hold(index, module.weights);
    updater.Hold(index, module.weights);
  }
  std::vector<std::vector<Action>> lists;  // this rank's lists; the second is for evaluations
  for (const Plan* plan : {&run.plan, &settings.forward_plan})
    if (!plan->ranks.empty()) lists.push_back(plan->ranks[static_cast<size_t>(rank)]);
  if (!conf.offloaded_stages.empty() &&
      std::any_of(lists[0].begin(), lists[0].end(),
                  [](const Action& a) { return a.kind == ActionKind::kLoad; })) {
    offloaded = std::make_unique<OffloadedWeights>(settings, ids, lists, modules);
    offloaded->ReportTo(settings.transport.status());
  }
  if (job.merge_buffers && training)
    replica_buffers = std::make_unique<ReplicaBuffers>(manifest, conf, job.microbatches,
                                                       job.accumulate, modules);
}

// Finds where gradients flow: through which modules and stages, and from which losses.
void TorchStages::State::LookUpGradients() {
  feeds_back.resize(manifest.modules.size());
  for (const auto& [index, module] : modules)
    for (int id : manifest.modules[index].inputs) {
      int producer = value(id).producer;
      if (!value(id).gradient || producer < 0) continue;
      bool here = conf.module_to_stage[producer] == conf.module_to_stage[index];
      if (!here || feeds_back[producer]) feeds_back[index] = true;
    }
  learning = LearningStages(manifest, conf);
  for (const LossJob& loss : job.losses) {
    loss_values.push_back(manifest.outputs[loss.output]);
    loss_stages.push_back(conf.module_to_stage[value(loss_values.back()).producer]);
  }
  wanted.resize(manifest.modules.size());
  returned.resize(manifest.modules.size());
  for (const auto& [index, module] : modules) {
    for (int id : manifest.modules[index].inputs) wanted[index].push_back(value(id).gradient);
    for (int id : manifest.modules[index].outputs) {
      const bool lost = value(id).consumers.empty() &&
                        std::count(loss_values.begin(), loss_values.end(), id) == 0;
      returned[index].push_back(value(id).gradient && !lost);
    }
  }
}

void TorchStages::State::LookUpRecompute() {
  recomputed.assign(graph.stages, false);
  for (int stage = 0; stage < graph.stages; ++stage)
    recomputed[stage] = learning[stage] && !modules_of[stage].empty() &&
                        std::all_of(modules_of[stage].begin(), modules_of[stage].end(),
                                    [&](int m) { return Recomputes(m); });
  for (const auto& [index, module] : modules)
    if (training && Recomputes(index) && !module.written_parameters.empty())
      throw Error("recompute",
                  manifest.modules[index].name + " writes to its parameter " +
                      module.written_parameters[0] + " in forward, and would write twice",
                  "list the other stages or modules: \"recompute\": {\"modules\": [...]}");
}

// Refuses writes to parameters that other copies of them would not have.
void TorchStages::State::CheckWrittenParameters() {
  if (!training) return;
  for (const auto& [index, module] : modules) {
    if (module.written_parameters.empty()) continue;
    const std::string& name = module.written_parameters[0];
    const std::string writes =
        manifest.modules[index].name + " writes to its parameter " + name + " in forward, ";
    const int stage = conf.module_to_stage[index];
    if (conf.stage_to_ranks[stage].size() > 1)
      throw Error("stage " + std::to_string(stage) + " has several ranks",
                  writes + "and each rank would write for its own microbatches only",
                  "give that stage one rank in the conf");
    if (job.optimizer.master_weights &&
        c10::elementSize(module.weights[WeightIndex(index, name)].scalar_type()) == 2)
      throw Error(job.path + ": optimizer.master_weights",
                  writes + "and the optimizer's 32-bit copy would replace it",
                  "leave out master_weights");
  }
}

void TorchStages::Recompute(const std::vector<bool>& modules) {
  state_->recompute = modules;
  state_->LookUpRecompute();
}

TorchStages::~TorchStages() = default;

void TorchStages::SetStep(Microbatches& source, int64_t step, int64_t count) {
  State& s = *state_;
  if (!s.late.Ready()) s.AwaitDevice();
  s.late.Read();  // of a step that was not finished
  s.clock.Begin();
  s.source = &source;
  s.step = step;
  s.versions.clear();
  const int microbatches = static_cast<int>(s.job.microbatches * count);
  s.terms.assign(s.loss_values.size(), std::vector<LossTerm>(microbatches));
  s.specs.clear();
  for (int i = 0; i < microbatches; ++i)
    s.specs.push_back(s.settings.shapes.Of(source.Specs(s.Minibatch(i), s.Within(i))));
}
LossTerms& TorchStages::terms() { return state_->terms; }

void TorchStages::MeasureGradients() { state_->updater.Measure(state_->late); }

void TorchStages::ReceiveOver(Transport& values) {
  state_->values = &values;
  if (state_->offloaded) state_->offloaded->ReceiveOver(values);
}
void TorchStages::AwaitDevice() { state_->AwaitDevice(); }

void TorchStages::ReadNumbers() {
  state_->AwaitDevice();
  state_->late.Read();
  for (std::vector<LossTerm>& of_loss : state_->terms)
    for (LossTerm& term : of_loss) term.loss = PlainNan(term.loss);
}

const std::set<std::string>& TorchStages::State::Written(int module) {
  const auto [found, first] = written.try_emplace(module);
  if (first)
    for (WeightKind kind : {WeightKind::kBuffer, WeightKind::kParameter})
      for (const WrittenWeight& each :
           WrittenWeights(*modules.at(module).graph, manifest.modules[module], kind))
        found->second.insert(each.name);
  return found->second;
}

bool TorchStages::Writes(int module, const std::string& name) const {
  return state_->Written(module).count(name) > 0;
}

void TorchStages::State::KeepWritten() {
  at::NoGradGuard no_grad;
  if (!before_evaluation) {
    before_evaluation.emplace();
    for (const auto& [index, module] : modules)
      for (const std::string& name : Written(index)) {
        const size_t w = WeightIndex(index, name);
        (*before_evaluation)[index][w] = at::empty_like(module.weights[w].detach());
      }
  }
  for (auto& [index, buffers] : *before_evaluation)
    for (auto& [w, before] : buffers) before.copy_(modules.at(index).weights[w]);
}

void TorchStages::State::PutBackWritten() {
  at::NoGradGuard no_grad;
  if (!before_evaluation) return;
  for (const auto& [index, buffers] : *before_evaluation)
    for (const auto& [w, before] : buffers) modules.at(index).weights[w].copy_(before);
}

void TorchStages::SetTraining(bool training) {
  if (training)
    state_->PutBackWritten();
  else
    state_->KeepWritten();
  state_->training = training;
  if (state_->offloaded) state_->offloaded->Follow(training ? 0 : 1);
  for (auto& [index, module] : state_->modules) pipewright::SetTraining(module, training);
}

const std::vector<int>& TorchStages::loss_stages() const { return state_->loss_stages; }

bool TorchStages::has_losses() const {
  const State& s = *state_;
  return !s.loss_stages.empty() &&
         s.conf.stage_to_ranks[s.loss_stages[0]][0] == s.settings.transport.rank();
}

bool TorchStages::Holds(int module) const { return state_->modules.count(module) > 0; }

at::Tensor TorchStages::Weight(int module, const std::string& name) const {
  auto found = state_->modules.find(module);
  if (found == state_->modules.end()) return {};
  const size_t index = state_->WeightIndex(module, name);
  const at::Tensor& weight = found->second.weights[index];
  if (!state_->offloaded || !state_->offloaded->OnDisk(module, index)) return weight.detach();
  at::Tensor read = at::empty(state_->manifest.modules[module].held[index].shape, weight.options());
  Filler filler(read);
  state_->offloaded->Read(module, index, [&](std::string_view piece) { filler.Add(piece); });
  return read;
}

at::Tensor TorchStages::LastGradient(int module, const std::string& name) const {
  if (!state_->modules.count(module)) return {};
  return state_->updater.LastGradient(module, state_->WeightIndex(module, name));
}

Updater& TorchStages::updater() { return state_->updater; }

bool TorchStages::State::StopsAtLoss() const {
  if (!training) return job.stop_on_nan && !settings.options.training;  // not in a validation
  return job.stop_on_nan && CheckOf(settings) != FiniteCheck::kAll;
}
bool TorchStages::StopsAtLoss() const { return state_->StopsAtLoss(); }

void TorchStages::Watch() {
  state_->watches = true;
  state_->bad_value.reset();
}
const std::optional<BadValue>& TorchStages::bad_value() const { return state_->bad_value; }

std::map<int, BodyState> TorchStages::Bodies() const {
  std::map<int, BodyState> bodies;
  for (const auto& [index, module] : state_->modules) bodies[index] = StateOf(module);
  return bodies;
}

void TorchStages::MergeBuffers(Transport& transport) {
  if (!state_->replica_buffers) return;
  state_->replica_buffers->Merge(transport);
}

Bundle TorchStages::Allocate(int edge, int microbatch, bool backward, int slot, bool on_device) {
  std::vector<SlotMemory::Part> parts;
  for (int id : state_->MessageValues(edge, backward)) {
    const bool tensor = state_->value(id).kind == ValueKind::kTensor;
    parts.push_back({&state_->specs[microbatch]->at(id), on_device && tensor});
  }
  return state_->receive_buffers.Receive({edge, backward, slot}, parts);
}

int64_t TorchStages::MessageBytes(int edge, int microbatch, bool backward) {
  int64_t bytes = 0;
  for (int id : state_->MessageValues(edge, backward)) {
    const TensorSpec& spec = state_->specs[microbatch]->at(id);
    bytes += spec.bytes() + LayoutBytes(spec.sizes.size());
  }
  return bytes;
}

Bundle TorchStages::OnHost(Bundle message) {
  for (const Region& region : message.regions)
    if (region.on_device) {
      state_->AwaitDevice();
      return MessageOnHost(std::move(message));
    }
  return message;
}

// Stores what backward needs in `keep`; null: keeps nothing.
std::vector<c10::IValue> TorchStages::State::RunModule(int index, int microbatch,
                                                       std::vector<c10::IValue> inputs,
                                                       Kept* keep) const {
  SetRandomKey({job.seed, static_cast<uint64_t>(Minibatch(microbatch)),
                static_cast<uint64_t>(Within(microbatch))});
  std::vector<c10::IValue> outputs =
      ForwardIsland(modules.at(index), std::move(inputs), wanted[index], keep);
  for (size_t i = 0; keep && i < returned[index].size(); ++i)
    if (!returned[index][i]) keep->outputs[i].reset();
  return outputs;
}

c10::IValue TorchStages::State::InputValue(int input, int microbatch) const {
  const c10::IValue given =
      FromTensor(Input(input, microbatch), value(manifest.inputs[static_cast<size_t>(input)]));
  return given.isTensor() ? OnDeviceLater(given.toTensor(), device) : given;
}

// Runs the modules of a stage in order. `again`: recomputes them for backward.
void TorchStages::State::RunModules(int stage, int microbatch, std::vector<c10::IValue>& values,
                                    bool again) {
  for (int module : modules_of[stage]) {
    running = module;
    const ModuleInfo& info = manifest.modules[module];
    std::vector<c10::IValue> inputs;
    for (int id : info.inputs) {
      if (values[id].isNone() && value(id).producer < 0)
        for (size_t i = 0; i < manifest.inputs.size(); ++i)
          if (manifest.inputs[i] == id) values[id] = InputValue(static_cast<int>(i), microbatch);
      inputs.push_back(values[id]);
    }
    std::vector<c10::IValue> outputs;
    const bool notes = replica_buffers && training && !again;
    if (notes) replica_buffers->Before(module);
    if (!training)
      outputs = RunModule(module, microbatch, std::move(inputs), nullptr);
    else if (Kept forgotten; !learning[stage])
      outputs = RunModule(module, microbatch, std::move(inputs), &forgotten);
    else if (again)
      outputs = RunAgain(module, microbatch, std::move(inputs),
                         &WorkOf(module, microbatch).kept);
    else if (Recomputes(module))
      outputs = RunForgetting(module, microbatch, std::move(inputs));
    else
      outputs = RunModule(module, microbatch, std::move(inputs),
                          &WorkOf(module, microbatch).kept);
    if (notes)
      replica_buffers->After(
          module,
          static_cast<int>(Minibatch(microbatch) % job.accumulate) * job.microbatches +
              Within(microbatch));
    if (watches && !again) LookAt(module, microbatch, outputs);
    for (size_t i = 0; i < outputs.size(); ++i) values[info.outputs[i]] = std::move(outputs[i]);
  }
}

void TorchStages::State::LookAt(int module, int microbatch,
                                const std::vector<c10::IValue>& outputs) {
  AwaitDevice();
  auto order = [](const BadValue& v) {
    return std::tuple(v.what == "-inf", v.minibatch, v.microbatch, v.module);
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].isTensor()) continue;
    BadValue found{Minibatch(microbatch), Within(microbatch), module,
                   value(manifest.modules[module].outputs[i]).name,
                   NotFinite(outputs[i].toTensor())};
    if (found.what.empty() || (bad_value && order(*bad_value) <= order(found))) continue;
    bad_value = std::move(found);
  }
}

void TorchStages::State::ComputeLoss(int index, int microbatch, const at::Tensor& output,
                                     bool keep) {
  const LossJob& loss_job = job.losses[index];
  LossTerm& term = terms[index][microbatch];
  at::Tensor leaf = output.detach();
  at::Tensor target;
  if (loss_job.kind != LossJob::kOutput) target = Input(-1 - index, microbatch);
  at::AutoGradMode mode(training);
  if (training && value(loss_values[index]).gradient) leaf.requires_grad_(true);
  at::Tensor loss =
      Loss(loss_job, leaf, target, target.defined() ? source->TargetName(index) : "target");
  late.Add(loss, &term.loss);
  if (job.accuracy || !training) {
    const int64_t samples = loss_job.kind == LossJob::kOutput
                                ? source->Samples(Minibatch(microbatch), Within(microbatch))
                            : output.dim() > 0 ? output.size(0)
                                               : 1;
    term.count = LossCount(loss_job, target, samples);
    if (loss_job.HasClasses()) late.Add(LossHits(loss_job, leaf.detach(), target), &term.correct);
  }
  if (StopsAtLoss()) {
    AwaitDevice();
    late.Read();
  }
  term.loss = PlainNan(term.loss);
  if (StopsAtLoss() && !std::isfinite(term.loss)) {
    const std::string sample = source->NotFinite(Minibatch(microbatch), Within(microbatch));
    throw Error("loss", "is " + std::to_string(term.loss) + (sample.empty() ? "" : ": " + sample),
                kNotFiniteCure);
  }
  if (!keep || !loss.requires_grad()) return;
  const double factor =
      updater.loss_scale().factor * loss_job.weight *
      source->LossWeight(index, Minibatch(microbatch), Within(microbatch));
  if (factor != 1) loss = loss.mul(factor);
  under_way[{loss_stages[index], microbatch}].losses[index] = {leaf, loss};
}

void TorchStages::State::ComputeLosses(int stage, int microbatch,
                                       const std::vector<c10::IValue>& values, bool keep) {
  for (size_t k = 0; k < loss_values.size(); ++k)
    if (loss_stages[k] == stage)
      ComputeLoss(static_cast<int>(k), microbatch, values[loss_values[k]].toTensor(), keep);
}

// Returns true if the tensor lies in the memory of a weight of the stage.
bool TorchStages::State::IsWeight(int stage, const at::Tensor& tensor) const {
  for (int module : modules_of[stage])
    for (const at::Tensor& weight : modules.at(module).weights)
      if (weight.defined() && MemoryOf(weight) == MemoryOf(tensor)) return true;
  return false;
}

std::vector<Bundle> TorchStages::Forward(int stage, int microbatch, std::vector<Bundle> inputs) {
  State& s = *state_;
  std::vector<c10::IValue> values(s.manifest.values.size());
  const bool again = s.training && s.recomputed[stage];
  std::vector<std::pair<int, c10::IValue>> received;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const EdgeContents& contents = s.contents[s.edges_in[stage][i]];
    std::vector<bool> scalars;
    for (int id : contents.forward) scalars.push_back(s.value(id).kind != ValueKind::kTensor);
    const Tensors tensors = ReadMessage(inputs[i], s.device, scalars);
    for (size_t k = 0; k < contents.forward.size(); ++k) {
      const int id = contents.forward[k];
      values[id] = FromTensor(tensors[k], s.value(id));
      if (again) received.emplace_back(id, values[id]);
    }
  }
  if (again) s.under_way[{stage, microbatch}].received = std::move(received);
  inputs.clear();
  if (auto at = s.versions.find(stage); at != s.versions.end())
    ++at->second.users[at->second.current];
  if (s.offloaded) s.offloaded->Bind(stage);
  s.RunModules(stage, microbatch, values, false);
  if (s.offloaded)
    for (c10::IValue& value : values)
      if (value.isTensor()) value = s.offloaded->Detached(stage, value.toTensor());
  for (size_t i = 0; i < s.manifest.outputs.size(); ++i) {
    int id = s.manifest.outputs[i];
    int producer = s.value(id).producer;
    if (producer < 0 || s.conf.module_to_stage[producer] != stage) continue;
    if (!values[id].isNone()) s.source->Output(static_cast<int>(i), microbatch, values[id]);
  }
  s.ComputeLosses(stage, microbatch, values, s.training && !again);
  std::vector<Bundle> out;
  for (int edge : s.edges_out[stage]) {
    Tensors tensors;
    for (int id : s.contents[edge].forward) {
      tensors.push_back(ToTensor(values[id]));
      // The receiver expects it on the device.
      if (s.value(id).kind == ValueKind::kTensor)
        tensors.back() = OnDeviceLater(tensors.back(), s.device);
      // It may leave after the STEP that changes the weight.
      if (!tensors.back().is_cpu() && s.IsWeight(stage, tensors.back()))
        tensors.back() = tensors.back().clone();
    }
    out.push_back(MakeMessage(std::move(tensors)));
  }
  return out;
}

const std::vector<SharedGroup>& TorchStages::groups() const {
  return state_->gradients.exchanges();
}
Bundle TorchStages::Gradient(int group, int holder) {
  if (state_->gradients.Copies(group, holder)) state_->AwaitDevice();
  return state_->gradients.Gradient(group, holder);
}
Bundle TorchStages::Scratch(int group) {
  return state_->gradients.Scratch(group, state_->memory);
}
void TorchStages::Add(const Bundle& into, const Bundle& from) { GradientSums::AddTo(into, from); }
void TorchStages::Copy(const Bundle& into, const Bundle& from) { GradientSums::CopyTo(into, from); }
void TorchStages::OnReady(std::function<void(int)> ready) {
  state_->gradients.OnReady(std::move(ready));
}

std::shared_ptr<void> TorchStages::Exchanging(bool begins) {
  return state_->gradients.Exchanging(begins);
}
void TorchStages::EndExchanges() { state_->gradients.EndExchanges(); }
bool TorchStages::AllReduces(int group) { return state_->gradients.AllReduces(group); }
void TorchStages::ExchangeOnDevices(const DevicePeers& peers) {
  state_->gradients.ExchangeOnDevices(peers);
}

int TorchStages::Mark() { return state_->clock.Mark(); }
int TorchStages::Reached() { return state_->clock.Reached(); }
double TorchStages::Moment(int mark) { return state_->clock.Moment(mark); }

void TorchStages::Load(int stage) {
  if (!state_->offloaded) return StageBody::Load(stage);
  state_->offloaded->Load(stage);
}
void TorchStages::Evict(int stage) {
  if (!state_->offloaded) return StageBody::Evict(stage);
  state_->offloaded->Evict(stage);
}
const OffloadedWeights* TorchStages::offloaded() const { return state_->offloaded.get(); }

void TorchStages::Step(int stage) {
  State& s = *state_;
  const bool versioned = s.versions.count(stage) > 0;
  if (versioned) s.MakeVersion(stage);
  if (CheckOf(s.settings) == FiniteCheck::kEach) s.AwaitDevice();
  for (int index : s.modules_of[stage]) {
    Tensors gradients = s.gradients.Take(index);
    s.updater.Step(index, gradients);
  }
  if (versioned) {
    ReadNumbers();  // Stepped reports them
    s.source->Stepped(s.versions[stage].steps);
  }
}

}  // namespace pipewright
