#include "runtime/stage.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>

#include "passes/random_ops.h"
#include "plan/error.h"
#include "runtime/dtype.h"
#include "runtime/edges.h"
#include "runtime/loss.h"

namespace pipewright {

namespace {

using Tensors = std::vector<at::Tensor>;

Bundle MakeBundle(Tensors tensors) {
  auto owner = std::make_shared<Tensors>(std::move(tensors));
  Bundle bundle;
  for (at::Tensor& tensor : *owner) bundle.regions.push_back({tensor.data_ptr(), tensor.nbytes()});
  bundle.owner = std::move(owner);
  return bundle;
}

const Tensors& TensorsOf(const Bundle& bundle) {
  return *static_cast<const Tensors*>(bundle.owner.get());
}

// How a value looks on a message, and back: scalars travel as tensors of no dimension.
at::Tensor ToTensor(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().detach().contiguous();
  return at::scalar_tensor(value.toScalar(), value.isInt()    ? at::kLong
                                             : value.isBool() ? at::kBool
                                                              : at::kDouble);
}

c10::IValue FromTensor(const at::Tensor& tensor, const ValueInfo& value) {
  if (value.kind == "int") return tensor.item<int64_t>();
  if (value.kind == "float") return tensor.item<double>();
  if (value.kind == "bool") return tensor.item<bool>();
  return tensor;
}

// What a module keeps from forward to backward.
struct Kept {
  Tensors inputs;   // leaves, undefined where no gradient is wanted
  Tensors outputs;  // undefined where none can arrive
};

// Who gave a gradient, and what: by module; the loss comes after all of them. Nobody: the gradient
// is undefined, and what lies before is not trained by it, as in one process.
using Gifts = std::vector<std::pair<int, at::Tensor>>;

// The last consumer's first, as autograd meets them.
at::Tensor SumInOrder(Gifts gifts) {
  std::sort(gifts.begin(), gifts.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  at::Tensor sum = gifts[0].second;
  for (size_t i = 1; i < gifts.size(); ++i)
    sum = i == 1 ? sum.add(gifts[i].second) : sum.add_(gifts[i].second);
  return sum;
}

// Keeps the first gradient of a parameter, adds the others. The engine may hand out a tensor that
// something else also sees (two biases of one sum); such a one is copied.
void Accumulate(at::Tensor& sum, const at::Tensor& gradient, at::ScalarType type) {
  if (sum.defined())
    sum.add_(gradient);
  else if (type != gradient.scalar_type())
    sum = gradient.to(type, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  else if (gradient.is_contiguous() && gradient.use_count() == 1 &&
           gradient.storage().use_count() == 1)
    sum = gradient;
  else
    sum = gradient.clone(at::MemoryFormat::Contiguous);
}

}  // namespace

struct TorchStages::State {
  StageSettings settings;
  const Manifest& manifest;
  const StageGraph& graph;
  std::vector<EdgeContents> contents;                 // by edge
  std::vector<std::vector<int>> edges_in, edges_out;  // by stage
  std::vector<std::vector<int>> modules_of;           // by stage, of this rank
  std::map<int, LoadedModule> modules;                // of this rank, by index
  std::map<int, Tensors> gradients;                   // by module; as LoadedModule::weights
  Updater updater;
  // Whether a shared weight got a gradient, from the exchange until the step; by (module, weight).
  std::map<std::pair<int, size_t>, at::Tensor> shared_defined;
  std::vector<const SharedWeight*> groups;   // trainable ones, as SharedGroups lists them
  std::map<std::pair<int, int>, Kept> kept;  // (module, microbatch)
  std::map<int, std::pair<at::Tensor, at::Tensor>> loss_kept;  // microbatch -> leaf, loss
  int loss_value = -1;  // the value that the loss is computed from
  bool computes_loss = false;
  std::vector<double> losses;
  std::vector<Hits> hits;
  int64_t step = 0;

  explicit State(StageSettings s)
      : settings(std::move(s)),
        manifest(*settings.manifest),
        graph(*settings.graph),
        updater(manifest, settings.optimizer, settings.loss_scale, settings.keep_gradients) {}

  const ValueInfo& value(int id) const { return manifest.values[id]; }

  // The value of each tensor in a message. A backward one ends with a tensor of flags: which of the
  // gradients are defined.
  std::vector<int> MessageValues(int edge, bool backward) const {
    if (!backward) return contents[edge].forward;
    std::vector<int> ids;
    for (const Contribution& contribution : contents[edge].backward)
      ids.push_back(contribution.value);
    return ids;
  }

  // Gradients of 16-bit parameters with a master copy are added in 32.
  at::ScalarType GradientType(at::ScalarType parameter) const {
    return settings.optimizer.master_weights && c10::elementSize(parameter) == 2 ? at::kFloat
                                                                                 : parameter;
  }

  size_t WeightIndex(int module, const std::string& name) const {
    const std::vector<WeightInfo>& held = manifest.modules[module].held;
    for (size_t i = 0; i < held.size(); ++i)
      if (held[i].name == name) return i;
    throw Error("module" + std::to_string(module), "holds no weight \"" + name + "\"");
  }

  void RunModule(int index, int microbatch, std::vector<c10::IValue>& values);
  void ComputeLoss(int microbatch, const at::Tensor& output);
  void BackwardModule(int index, int microbatch, std::map<int, Gifts>& gifts);
};

std::vector<SharedGroup> SharedGroups(const Manifest& manifest, const Conf& conf) {
  std::vector<SharedGroup> groups;
  for (const SharedWeight& weight : manifest.shared) {
    if (!Trained(manifest, weight)) continue;
    SharedGroup group;
    for (const SharedWeight::Holder& holder : weight.holders) {
      int stage = conf.module_to_stage[holder.module];
      group.push_back({stage, conf.stage_to_ranks[stage][0]});
    }
    groups.push_back(std::move(group));
  }
  return groups;
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
  for (const SharedWeight& weight : s.manifest.shared)
    if (Trained(s.manifest, weight)) s.groups.push_back(&weight);
  for (size_t m = 0; m < s.manifest.modules.size(); ++m) {
    int stage = conf.module_to_stage[m], index = static_cast<int>(m);
    const std::vector<int>& ranks = conf.stage_to_ranks[stage];
    if (std::find(ranks.begin(), ranks.end(), s.settings.rank) == ranks.end()) continue;
    s.modules_of[stage].push_back(index);
    LoadedModule& module =
        s.modules.emplace(index, LoadModule(s.settings.package, s.manifest, index)).first->second;
    pipewright::SetTraining(module, s.settings.training);
    s.gradients[index].resize(module.weights.size());
    s.updater.Hold(index, module.weights);
  }
  if (s.settings.has_loss) {
    s.loss_value = s.manifest.outputs[s.settings.loss.output];
    s.computes_loss = s.modules.count(s.value(s.loss_value).producer) > 0;
  }
}

TorchStages::~TorchStages() = default;

void TorchStages::SetStep(int64_t step) {
  state_->step = step;
  state_->losses.assign(state_->computes_loss ? state_->settings.microbatches : 0, 0);
  state_->hits.assign(state_->losses.size(), {});
}
const std::vector<double>& TorchStages::losses() const { return state_->losses; }
bool TorchStages::computes_loss() const { return state_->computes_loss; }
const std::vector<TorchStages::Hits>& TorchStages::hits() const { return state_->hits; }

void TorchStages::SetTraining(bool training) {
  state_->settings.training = training;
  for (auto& [index, module] : state_->modules) pipewright::SetTraining(module, training);
}

at::Tensor TorchStages::Weight(int module, const std::string& name) const {
  auto found = state_->modules.find(module);
  if (found == state_->modules.end()) return {};
  return found->second.weights[state_->WeightIndex(module, name)].detach();
}

at::Tensor TorchStages::LastGradient(int module, const std::string& name) const {
  if (!state_->modules.count(module)) return {};
  return state_->updater.LastGradient(module, state_->WeightIndex(module, name));
}

Updater& TorchStages::updater() { return state_->updater; }

Bundle TorchStages::Allocate(int edge, int, bool backward) {
  Tensors tensors;
  for (int id : state_->MessageValues(edge, backward)) {
    const TensorSpec& spec = state_->settings.specs[id];
    tensors.push_back(at::empty(spec.sizes, spec.type));
  }
  if (backward) tensors.push_back(at::empty({static_cast<int64_t>(tensors.size())}, at::kBool));
  return MakeBundle(std::move(tensors));
}

int64_t TorchStages::MessageBytes(int edge, int, bool backward) {
  std::vector<int> values = state_->MessageValues(edge, backward);
  int64_t bytes = backward ? static_cast<int64_t>(values.size()) : 0;
  for (int id : values) bytes += state_->settings.specs[id].bytes();
  return bytes;
}

void TorchStages::State::RunModule(int index, int microbatch, std::vector<c10::IValue>& values) {
  const ModuleInfo& info = manifest.modules[index];
  Kept keep;
  std::vector<c10::IValue> inputs;
  for (int id : info.inputs) {
    at::Tensor leaf;
    if (settings.training && value(id).gradient) {
      leaf = values[id].toTensor().detach().requires_grad_(true);
      inputs.emplace_back(leaf);
    } else {
      inputs.push_back(values[id]);
    }
    keep.inputs.push_back(std::move(leaf));
  }
  SetRandomKey({settings.seed, static_cast<uint64_t>(step), static_cast<uint64_t>(microbatch)});
  at::AutoGradMode mode(settings.training);
  std::vector<c10::IValue> outputs = Run(modules.at(index), std::move(inputs));
  for (size_t i = 0; i < info.outputs.size(); ++i) {
    int id = info.outputs[i];
    bool root = value(id).gradient && outputs[i].isTensor() &&
                outputs[i].toTensor().requires_grad() &&
                (!value(id).consumers.empty() || id == loss_value);
    keep.outputs.push_back(root ? outputs[i].toTensor() : at::Tensor());
    values[id] = outputs[i].isTensor() ? c10::IValue(ToTensor(outputs[i])) : std::move(outputs[i]);
  }
  if (settings.training) kept[{index, microbatch}] = std::move(keep);
}

void TorchStages::State::ComputeLoss(int microbatch, const at::Tensor& output) {
  at::Tensor leaf = output.detach();
  at::Tensor target;
  if (settings.loss.kind != LossJob::kOutput) target = settings.input(-1, microbatch);
  at::AutoGradMode mode(settings.training);
  if (settings.training && value(loss_value).gradient) leaf.requires_grad_(true);
  at::Tensor loss = Loss(settings.loss, leaf, target);
  losses[microbatch] = loss.item<double>();
  if (settings.accuracy || !settings.training) {
    int64_t samples = output.dim() > 0 ? output.size(0) : 1;
    hits[microbatch].count = LossCount(settings.loss, target, samples);
    if (settings.loss.kind == LossJob::kCrossEntropy)
      hits[microbatch].correct = LossHits(settings.loss, leaf.detach(), target);
  }
  if (settings.stop_on_nan && !std::isfinite(losses[microbatch]))
    throw Error("loss", "is " + std::to_string(losses[microbatch]),
                "lower the learning rate, or let the job go on with \"nan\": \"ignore\"");
  double factor = updater.loss_scale().factor;
  if (settings.loss_weight) factor *= settings.loss_weight(microbatch);
  if (factor != 1) loss = loss.mul(factor);
  if (settings.training && loss.requires_grad()) loss_kept[microbatch] = {leaf, loss};
}

std::vector<Bundle> TorchStages::Forward(int stage, int microbatch, std::vector<Bundle> inputs) {
  State& s = *state_;
  std::vector<c10::IValue> values(s.manifest.values.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const EdgeContents& contents = s.contents[s.edges_in[stage][i]];
    for (size_t k = 0; k < contents.forward.size(); ++k)
      values[contents.forward[k]] =
          FromTensor(TensorsOf(inputs[i])[k], s.value(contents.forward[k]));
  }
  inputs.clear();
  for (int module : s.modules_of[stage]) {
    for (int id : s.manifest.modules[module].inputs)
      if (values[id].isNone() && s.value(id).producer < 0)
        for (size_t i = 0; i < s.manifest.inputs.size(); ++i)
          if (s.manifest.inputs[i] == id)
            values[id] = FromTensor(s.settings.input(static_cast<int>(i), microbatch), s.value(id));
    s.RunModule(module, microbatch, values);
  }
  for (size_t i = 0; i < s.manifest.outputs.size(); ++i) {
    int id = s.manifest.outputs[i];
    int producer = s.value(id).producer;
    if (producer < 0 || s.settings.conf->module_to_stage[producer] != stage) continue;
    if (s.settings.output) s.settings.output(static_cast<int>(i), microbatch, ToTensor(values[id]));
    if (id == s.loss_value && static_cast<int>(i) == s.settings.loss.output)
      s.ComputeLoss(microbatch, values[id].toTensor());
  }
  std::vector<Bundle> out;
  for (int edge : s.edges_out[stage]) {
    Tensors tensors;
    for (int id : s.contents[edge].forward) tensors.push_back(ToTensor(values[id]));
    out.push_back(MakeBundle(std::move(tensors)));
  }
  return out;
}

void TorchStages::State::BackwardModule(int index, int microbatch, std::map<int, Gifts>& gifts) {
  const ModuleInfo& info = manifest.modules[index];
  auto found = kept.find({index, microbatch});
  Kept keep = std::move(found->second);
  kept.erase(found);

  Tensors roots, root_gradients;
  for (size_t i = 0; i < info.outputs.size(); ++i) {
    auto gift = gifts.find(info.outputs[i]);
    if (gift == gifts.end()) continue;
    if (keep.outputs[i].defined()) {
      roots.push_back(keep.outputs[i]);
      root_gradients.push_back(SumInOrder(std::move(gift->second)));
    }
    gifts.erase(gift);
  }
  LoadedModule& module = modules.at(index);
  Tensors leaves;
  for (const at::Tensor& input : keep.inputs)
    if (input.defined()) leaves.push_back(input);
  size_t inputs = leaves.size();
  for (const at::Tensor& weight : module.weights)
    if (weight.requires_grad()) leaves.push_back(weight);
  Tensors found_gradients(leaves.size());
  keep.outputs.clear();
  if (!roots.empty() && !leaves.empty())
    found_gradients = torch::autograd::grad(roots, leaves, root_gradients, /*retain_graph=*/false,
                                            /*create_graph=*/false, /*allow_unused=*/true);
  roots.clear();
  size_t next = inputs;
  for (size_t w = 0; w < module.weights.size(); ++w) {
    if (!module.weights[w].requires_grad()) continue;
    at::Tensor gradient = std::move(found_gradients[next++]);
    if (gradient.defined())
      Accumulate(gradients[index][w], gradient, GradientType(gradient.scalar_type()));
  }
  next = 0;
  for (size_t i = 0; i < info.inputs.size(); ++i) {
    if (!keep.inputs[i].defined()) continue;
    at::Tensor gradient = std::move(found_gradients[next++]);
    if (gradient.defined()) gifts[info.inputs[i]].emplace_back(index, gradient.contiguous());
  }
}

std::vector<Bundle> TorchStages::Backward(ActionKind kind, int stage, int microbatch,
                                          std::vector<Bundle> gradients) {
  State& s = *state_;
  if (kind != ActionKind::kBackward)
    throw Error("schedule", "splits the backward pass into I and W, which this version cannot run",
                "choose gpipe, 1f1b, interleaved or bfs");
  std::map<int, Gifts> gifts;  // by value
  size_t next = 0;
  for (int edge : s.edges_out[stage]) {
    if (!s.graph.edges[edge].gradient) continue;
    const std::vector<Contribution>& contributions = s.contents[edge].backward;
    const Tensors& tensors = TensorsOf(gradients[next++]);
    const bool* defined = tensors.back().const_data_ptr<bool>();
    for (size_t k = 0; k < contributions.size(); ++k)
      if (defined[k])
        gifts[contributions[k].value].emplace_back(contributions[k].consumers[0], tensors[k]);
  }
  gradients.clear();
  if (auto loss = s.loss_kept.find(microbatch);
      loss != s.loss_kept.end() &&
      s.settings.conf->module_to_stage[s.value(s.loss_value).producer] == stage) {
    auto [leaf, value] = loss->second;
    s.loss_kept.erase(loss);
    gifts[s.loss_value].emplace_back(static_cast<int>(s.manifest.modules.size()),
                                     torch::autograd::grad({value}, {leaf})[0]);
  }
  const std::vector<int>& modules = s.modules_of[stage];
  for (auto module = modules.rbegin(); module != modules.rend(); ++module)
    s.BackwardModule(*module, microbatch, gifts);

  std::vector<Bundle> out;
  for (int edge : s.edges_in[stage]) {
    if (!s.graph.edges[edge].gradient) continue;
    const std::vector<Contribution>& contributions = s.contents[edge].backward;
    Tensors tensors;
    at::Tensor defined = at::empty({static_cast<int64_t>(contributions.size())}, at::kBool);
    for (const Contribution& contribution : contributions) {
      Gifts share;
      if (auto found = gifts.find(contribution.value); found != gifts.end())
        for (auto& [consumer, gift] : found->second)
          if (std::find(contribution.consumers.begin(), contribution.consumers.end(), consumer) !=
              contribution.consumers.end())
            share.emplace_back(consumer, gift);
      defined.mutable_data_ptr<bool>()[tensors.size()] = !share.empty();
      if (!share.empty()) {
        tensors.push_back(SumInOrder(std::move(share)));
      } else {
        const TensorSpec& spec = s.settings.specs[contribution.value];
        tensors.push_back(at::zeros(spec.sizes, spec.type));
      }
    }
    tensors.push_back(defined);
    out.push_back(MakeBundle(std::move(tensors)));
  }
  return out;
}

// A holder's gradient and a flag: whether it has one.
Bundle TorchStages::Gradient(int group, int holder) {
  State& s = *state_;
  const SharedWeight::Holder& at = s.groups[group]->holders[holder];
  size_t weight = s.WeightIndex(at.module, at.name);
  at::Tensor& gradient = s.gradients.at(at.module)[weight];
  at::Tensor& defined = s.shared_defined[{at.module, weight}];
  if (!defined.defined()) defined = at::scalar_tensor(gradient.defined(), at::kBool);
  if (!gradient.defined())
    gradient =
        at::zeros_like(s.modules.at(at.module).weights[weight].detach(),
                       s.GradientType(s.modules.at(at.module).weights[weight].scalar_type()));
  return MakeBundle({gradient, defined});
}

Bundle TorchStages::Scratch(int group) {
  State& s = *state_;
  const SharedWeight::Holder& at = s.groups[group]->holders[0];
  const WeightInfo& info = s.manifest.modules[at.module].held[s.WeightIndex(at.module, at.name)];
  return MakeBundle(
      {at::empty(info.shape, s.GradientType(DtypeOf(info.dtype))), at::empty({}, at::kBool)});
}

void TorchStages::Add(const Bundle& into, const Bundle& from) {
  at::NoGradGuard no_grad;
  const Tensors &to = TensorsOf(into), &more = TensorsOf(from);
  if (!more[1].item<bool>()) return;
  if (!to[1].item<bool>()) return Copy(into, from);
  to[0].add_(more[0]);
}

void TorchStages::Copy(const Bundle& into, const Bundle& from) {
  at::NoGradGuard no_grad;
  for (size_t i = 0; i < TensorsOf(into).size(); ++i) TensorsOf(into)[i].copy_(TensorsOf(from)[i]);
}

void TorchStages::Step(int stage) {
  State& s = *state_;
  for (int index : s.modules_of[stage]) {
    Tensors& gradients = s.gradients[index];
    for (size_t w = 0; w < gradients.size(); ++w)
      if (auto shared = s.shared_defined.find({index, w}); shared != s.shared_defined.end()) {
        if (!shared->second.item<bool>()) gradients[w].reset();
        s.shared_defined.erase(shared);
      }
    s.updater.Step(index, gradients);
  }
}

}  // namespace pipewright
