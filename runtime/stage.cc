#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "passes/random_ops.h"
#include "plan/error.h"
#include "plan/placement/tensor_ids.h"
#include "plan/run_plan.h"
#include "runtime/loss.h"
#include "runtime/module_weights.h"
#include "runtime/recorded/choice.h"
#include "runtime/stage_state.h"
#include "tensors/dtype.h"

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

// Of a module's weights, those that another has in memory.
static std::vector<at::Tensor> Known(const std::vector<int>& ids, const std::vector<bool>& on_disk,
                                     const std::map<int, at::Tensor>& tensors) {
  std::vector<at::Tensor> known(ids.size());
  for (size_t w = 0; w < ids.size(); ++w)
    if (auto found = tensors.find(ids[w]);
        found != tensors.end() && (on_disk.empty() || !on_disk[w]))
      known[w] = found->second;
  return known;
}

TorchStages::TorchStages(StageSettings settings)
    : state_(std::make_unique<State>(std::move(settings))) {
  State& s = *state_;
  const Conf& conf = *s.settings.conf;
  s.contents = MakeEdgeContents(s.manifest, conf, s.graph);
  s.edges_in.resize(s.graph.stages);
  s.edges_out.resize(s.graph.stages);
  s.modules_of.resize(s.graph.stages);
  for (size_t e = 0; e < s.graph.edges.size(); ++e) {
    s.edges_in[s.graph.edges[e].to].push_back(static_cast<int>(e));
    s.edges_out[s.graph.edges[e].from].push_back(static_cast<int>(e));
  }
  const std::vector<std::vector<int>> ids = TensorIds(s.manifest, s.settings.training);
  std::map<int, at::Tensor> tensors;  // in memory, by id
  for (size_t m = 0; m < s.manifest.modules.size(); ++m) {
    int stage = conf.module_to_stage[m], index = static_cast<int>(m);
    const std::vector<int>& ranks = conf.stage_to_ranks[stage];
    if (std::find(ranks.begin(), ranks.end(), s.settings.rank) == ranks.end()) continue;
    s.modules_of[stage].push_back(index);
    static const std::vector<bool> none;
    const std::vector<bool>& on_disk = s.settings.on_disk ? (*s.settings.on_disk)[m] : none;
    LoadedModule& module =
        s.modules
            .emplace(index, LoadModuleWithout(
                                s.settings.package, s.manifest, index, on_disk,
                                Known(ids[m], on_disk, tensors)))
            .first->second;
    if (s.settings.training)
      UseBody(module, s.settings.body,
              std::find(on_disk.begin(), on_disk.end(), true) != on_disk.end());
    for (size_t w = 0; w < ids[m].size(); ++w)
      if (on_disk.empty() || !on_disk[w]) tensors.emplace(ids[m][w], module.weights[w]);
    pipewright::SetTraining(module, s.settings.training);
    s.gradients.Hold(index, module.weights);
    s.updater.Hold(index, module.weights);
  }
  if (s.settings.on_disk &&
      std::any_of(s.settings.lists[0].begin(), s.settings.lists[0].end(),
                  [](const Action& a) { return a.kind == ActionKind::kLoad; }))
    s.offloaded =
        std::make_unique<OffloadedWeights>(s.settings.package, s.settings.weights, s.manifest, conf,
                                           *s.settings.on_disk, ids, s.settings.lists, s.modules);
  if (s.settings.merge_buffers && s.settings.training)
    s.replica_buffers = std::make_unique<ReplicaBuffers>(s.manifest, conf, s.settings.microbatches,
                                                         s.settings.minibatches, s.modules);
  s.feeds_back.resize(s.manifest.modules.size());
  for (const auto& [index, module] : s.modules)
    for (int id : s.manifest.modules[index].inputs) {
      int producer = s.value(id).producer;
      if (!s.value(id).gradient || producer < 0) continue;
      bool here = conf.module_to_stage[producer] == conf.module_to_stage[index];
      if (!here || s.feeds_back[producer]) s.feeds_back[index] = true;
    }
  s.learning = LearningStages(s.manifest, conf);
  s.recomputed.resize(s.graph.stages);
  for (int stage = 0; stage < s.graph.stages; ++stage) {
    const std::vector<int>& modules = s.modules_of[stage];
    s.recomputed[stage] =
        s.learning[stage] && !modules.empty() &&
        std::all_of(modules.begin(), modules.end(), [&](int m) { return s.Recomputes(m); });
  }
  for (const LossJob& loss : s.settings.losses) {
    s.loss_values.push_back(s.manifest.outputs[loss.output]);
    s.loss_stages.push_back(conf.module_to_stage[s.value(s.loss_values.back()).producer]);
  }
  s.wanted.resize(s.manifest.modules.size());
  s.returned.resize(s.manifest.modules.size());
  for (const auto& [index, module] : s.modules) {
    for (int id : s.manifest.modules[index].inputs) s.wanted[index].push_back(s.value(id).gradient);
    for (int id : s.manifest.modules[index].outputs) {
      const bool lost = s.value(id).consumers.empty() &&
                        std::count(s.loss_values.begin(), s.loss_values.end(), id) == 0;
      s.returned[index].push_back(s.value(id).gradient && !lost);
    }
  }
}

TorchStages::~TorchStages() = default;

void TorchStages::SetStep(int64_t step, int64_t count) {
  State& s = *state_;
  s.step = step;
  s.versions.clear();
  const int microbatches = static_cast<int>(s.settings.microbatches * count);
  s.terms.assign(s.loss_values.size(), std::vector<LossTerm>(microbatches));
  s.specs.clear();
  for (int i = 0; i < microbatches; ++i)
    s.specs.push_back(s.settings.specs(s.Minibatch(i), s.Within(i)));
}
LossTerms& TorchStages::terms() { return state_->terms; }

void TorchStages::SetTraining(bool training) {
  state_->settings.training = training;
  if (state_->offloaded) state_->offloaded->Follow(training ? 0 : 1);
  for (auto& [index, module] : state_->modules) pipewright::SetTraining(module, training);
}

const std::vector<int>& TorchStages::loss_stages() const { return state_->loss_stages; }

bool TorchStages::has_losses() const {
  const State& s = *state_;
  return !s.loss_stages.empty() &&
         s.settings.conf->stage_to_ranks[s.loss_stages[0]][0] == s.settings.rank;
}

bool TorchStages::Holds(int module) const { return state_->modules.count(module) > 0; }

at::Tensor TorchStages::Weight(int module, const std::string& name) const {
  auto found = state_->modules.find(module);
  if (found == state_->modules.end()) return {};
  const size_t index = state_->WeightIndex(module, name);
  const at::Tensor& weight = found->second.weights[index];
  if (!state_->offloaded || !state_->offloaded->OnDisk(module, index)) return weight.detach();
  at::Tensor read = at::empty(state_->manifest.modules[module].held[index].shape, weight.options());
  char* to = static_cast<char*>(read.data_ptr());
  state_->offloaded->Read(module, index, [&](std::string_view piece) {
    to = std::copy(piece.begin(), piece.end(), to);
  });
  return read;
}

at::Tensor TorchStages::LastGradient(int module, const std::string& name) const {
  if (!state_->modules.count(module)) return {};
  return state_->updater.LastGradient(module, state_->WeightIndex(module, name));
}

Updater& TorchStages::updater() { return state_->updater; }

std::map<int, BodyState> TorchStages::Bodies() const {
  std::map<int, BodyState> bodies;
  for (const auto& [index, module] : state_->modules) bodies[index] = StateOf(module);
  return bodies;
}

void TorchStages::MergeBuffers(Transport& transport) {
  if (state_->replica_buffers) state_->replica_buffers->Merge(transport);
}

Bundle TorchStages::Allocate(int edge, int microbatch, bool backward) {
  Tensors tensors;
  for (int id : state_->MessageValues(edge, backward)) {
    const TensorSpec& spec = state_->specs[microbatch]->at(id);
    tensors.push_back(EmptyTensor(spec.sizes, spec.type, state_->settings.memory));
  }
  return MakeMessage(std::move(tensors));
}

int64_t TorchStages::MessageBytes(int edge, int microbatch, bool backward) {
  int64_t bytes = 0;
  for (int id : state_->MessageValues(edge, backward)) {
    const TensorSpec& spec = state_->specs[microbatch]->at(id);
    bytes += spec.bytes() + LayoutBytes(spec.sizes.size());
  }
  return bytes;
}

// Keeps what backward needs in `keep`; null: nothing.
std::vector<c10::IValue> TorchStages::State::RunModule(int index, int microbatch,
                                                       std::vector<c10::IValue> inputs,
                                                       Kept* keep) const {
  SetRandomKey({settings.seed, static_cast<uint64_t>(Minibatch(microbatch)),
                static_cast<uint64_t>(Within(microbatch))});
  std::vector<c10::IValue> outputs =
      ForwardIsland(modules.at(index), std::move(inputs), wanted[index], keep);
  for (size_t i = 0; keep && i < returned[index].size(); ++i)
    if (!returned[index][i]) keep->outputs[i].reset();
  return outputs;
}

// The modules of a stage in order. `again`: for backward only.
void TorchStages::State::RunModules(int stage, int microbatch, std::vector<c10::IValue>& values,
                                    bool again) {
  for (int module : modules_of[stage]) {
    const ModuleInfo& info = manifest.modules[module];
    std::vector<c10::IValue> inputs;
    for (int id : info.inputs) {
      if (values[id].isNone() && value(id).producer < 0)
        for (size_t i = 0; i < manifest.inputs.size(); ++i)
          if (manifest.inputs[i] == id)
            values[id] = FromTensor(Input(static_cast<int>(i), microbatch), value(id));
      inputs.push_back(values[id]);
    }
    std::vector<c10::IValue> outputs;
    const bool notes = replica_buffers && settings.training && !again;
    if (notes) replica_buffers->Before(module);
    if (!settings.training)
      outputs = RunModule(module, microbatch, std::move(inputs), nullptr);
    else if (Kept forgotten; !learning[stage])
      outputs = RunModule(module, microbatch, std::move(inputs), &forgotten);
    else if (again)
      outputs = RunAgain(module, microbatch, std::move(inputs), &kept[{module, microbatch}]);
    else if (Recomputes(module))
      outputs = RunForgetting(module, microbatch, std::move(inputs));
    else
      outputs = RunModule(module, microbatch, std::move(inputs), &kept[{module, microbatch}]);
    if (notes)
      replica_buffers->After(
          module,
          static_cast<int>(Minibatch(microbatch) % settings.minibatches) * settings.microbatches +
              Within(microbatch));
    for (size_t i = 0; i < outputs.size(); ++i) values[info.outputs[i]] = std::move(outputs[i]);
  }
}

void TorchStages::State::ComputeLoss(int index, int microbatch, const at::Tensor& output,
                                     bool keep) {
  const LossJob& job = settings.losses[index];
  LossTerm& term = terms[index][microbatch];
  at::Tensor leaf = output.detach();
  at::Tensor target;
  if (job.kind != LossJob::kOutput) target = Input(-1 - index, microbatch);
  at::AutoGradMode mode(settings.training);
  if (settings.training && value(loss_values[index]).gradient) leaf.requires_grad_(true);
  const bool named = target.defined() && settings.target_name;
  at::Tensor loss = Loss(job, leaf, target, named ? settings.target_name(index) : "target");
  term.loss = PlainNan(loss.item<double>());
  if (settings.accuracy || !settings.training) {
    term.count = LossCount(job, target, output.dim() > 0 ? output.size(0) : 1);
    if (job.kind == LossJob::kCrossEntropy) term.correct = LossHits(job, leaf.detach(), target);
  }
  if (settings.stop_on_nan && !std::isfinite(term.loss))
    throw Error("loss", "is " + std::to_string(term.loss),
                "lower the learning rate, or let the job go on with \"nan\": \"ignore\"");
  double factor = updater.loss_scale().factor * job.weight;
  if (settings.loss_weight)
    factor *= settings.loss_weight(index, Minibatch(microbatch), Within(microbatch));
  if (factor != 1) loss = loss.mul(factor);
  if (keep && loss.requires_grad()) loss_kept[{index, microbatch}] = {leaf, loss};
}

void TorchStages::State::ComputeLosses(int stage, int microbatch,
                                       const std::vector<c10::IValue>& values, bool keep) {
  for (size_t k = 0; k < loss_values.size(); ++k)
    if (loss_stages[k] == stage)
      ComputeLoss(static_cast<int>(k), microbatch, values[loss_values[k]].toTensor(), keep);
}

std::vector<Bundle> TorchStages::Forward(int stage, int microbatch, std::vector<Bundle> inputs) {
  State& s = *state_;
  std::vector<c10::IValue> values(s.manifest.values.size());
  const bool again = s.settings.training && s.recomputed[stage];
  for (size_t i = 0; i < inputs.size(); ++i) {
    const EdgeContents& contents = s.contents[s.edges_in[stage][i]];
    const Tensors tensors = ReadMessage(inputs[i]);
    for (size_t k = 0; k < contents.forward.size(); ++k) {
      const int id = contents.forward[k];
      values[id] = FromTensor(tensors[k], s.value(id));
      if (again) s.received[{stage, microbatch}].emplace_back(id, values[id]);
    }
  }
  if (again) s.received[{stage, microbatch}];
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
    if (producer < 0 || s.settings.conf->module_to_stage[producer] != stage) continue;
    if (s.settings.output && !values[id].isNone())
      s.settings.output(static_cast<int>(i), microbatch, ToTensor(values[id]));
  }
  s.ComputeLosses(stage, microbatch, values, s.settings.training && !again);
  std::vector<Bundle> out;
  for (int edge : s.edges_out[stage]) {
    Tensors tensors;
    for (int id : s.contents[edge].forward) tensors.push_back(ToTensor(values[id]));
    out.push_back(MakeMessage(std::move(tensors)));
  }
  return out;
}

const std::vector<SharedGroup>& TorchStages::groups() const {
  return state_->gradients.exchanges();
}
Bundle TorchStages::Gradient(int group, int holder) {
  return state_->gradients.Gradient(group, holder);
}
Bundle TorchStages::Scratch(int group) {
  return state_->gradients.Scratch(group, state_->settings.memory);
}
void TorchStages::Add(const Bundle& into, const Bundle& from) { GradientSums::AddTo(into, from); }
void TorchStages::Copy(const Bundle& into, const Bundle& from) { GradientSums::CopyTo(into, from); }
void TorchStages::OnReady(std::function<void(int)> ready) {
  state_->gradients.OnReady(std::move(ready));
}

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
  for (int index : s.modules_of[stage]) {
    Tensors gradients = s.gradients.Take(index);
    s.updater.Step(index, gradients);
  }
  if (versioned && !s.loss_stages.empty() && s.loss_stages[0] == stage && s.settings.stepped)
    s.settings.stepped(s.versions[stage].steps);
}

}  // namespace pipewright
