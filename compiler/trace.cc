#include "compiler/trace.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/text.h"
#include "base/torch_error.h"
#include "compiler/import/script/script_graph.h"
#include "ops/random_ops.h"

namespace pipewright {

using torch::jit::Node;
using torch::jit::Value;
namespace prim = torch::jit::prim;

void pipe_split() {
  CurrentRandomKey();  // registers the operator
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("pipewright::pipe_split", "").typed<void()>();
  op.call();
}

namespace {

// Builds the TorchScript tree of `module`, with the same tensors.
torch::jit::Module Mirror(torch::nn::Module& module, int& count) {
  torch::jit::Module out(c10::QualifiedName("__torch__.Traced" + std::to_string(count++)));
  out.register_attribute("training", c10::BoolType::get(), module.is_training());
  for (const auto& parameter : module.named_parameters(/*recurse=*/false))
    out.register_parameter(parameter.key(), parameter.value(), /*is_buffer=*/false);
  for (const auto& buffer : module.named_buffers(/*recurse=*/false))
    out.register_buffer(buffer.key(), buffer.value());
  for (const auto& child : module.named_children())
    out.register_module(child.key(), Mirror(*child.value(), count));
  return out;
}

std::string CommonPath(const std::string& a, const std::string& b) {
  size_t same = 0;
  for (size_t i = 0; i <= std::min(a.size(), b.size()); ++i) {
    bool end_a = i == a.size() || a[i] == '.', end_b = i == b.size() || b[i] == '.';
    if (end_a && end_b) same = i;
    if (i == a.size() || i == b.size() || a[i] != b[i]) break;
  }
  return a.substr(0, same);
}

// Assigns an operation to the submodule whose weight it uses or, without a weight, to the common
// prefix of the operations before and after it.
void SetScopes(torch::jit::Graph& graph, ObjectTree& objects) {
  std::vector<Node*> nodes;
  for (Node* node : graph.nodes())
    if (node->kind() != prim::GetAttr && node->kind() != prim::Constant) nodes.push_back(node);
  std::vector<std::string> paths(nodes.size());
  std::vector<bool> owns(nodes.size(), false);
  std::map<std::string, int> uses;  // by weight
  for (size_t i = 0; i < nodes.size(); ++i) {
    int call = 0;
    for (const Value* input : nodes[i]->inputs()) {
      // A trace of torch::nn first transposes a weight.
      const Node* from = input->node();
      if (from->kind() != prim::GetAttr) continue;
      if (!objects.PathOf(from->inputs()[0], paths[i])) continue;
      owns[i] = true;
      call = std::max(call, uses[paths[i] + "." + from->s(c10::attr::name)]++);
    }
    if (call) paths[i] += "@" + std::to_string(call);
  }
  auto plain = [](const std::string& path) { return path.substr(0, path.find('@')); };
  std::vector<std::string> after(nodes.size() + 1);  // owner of the next operation that has one
  for (size_t i = nodes.size(); i-- > 0;) after[i] = owns[i] ? plain(paths[i]) : after[i + 1];
  std::string before;
  auto root = c10::make_intrusive<torch::jit::Scope>();
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!owns[i]) paths[i] = CommonPath(before, after[i + 1]);
    if (owns[i]) before = plain(paths[i]);
    torch::jit::ScopePtr scope = root;
    std::string path = paths[i];
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1))
      scope = scope->push(c10::Symbol::scope(path.substr(0, dot)));
    if (!path.empty()) scope = scope->push(c10::Symbol::scope(path));
    nodes[i]->setScope(scope);
  }
}

using Call = std::function<c10::IValue(const std::vector<at::Tensor>&)>;

// Holds what a recording needs.
struct Recorded {
  torch::nn::Module& module;
  torch::jit::Module& mirror;
  const Call& call;
  const std::vector<std::string>& names;
};

std::shared_ptr<torch::jit::Graph> Record(const Recorded& recorded,
                                          const std::vector<at::Tensor>& inputs) {
  return torch::jit::tracer::trace(
             torch::jit::Stack(inputs.begin(), inputs.end()),
             [&](torch::jit::Stack given) {
               std::vector<at::Tensor> tensors;
               for (const c10::IValue& value : given) tensors.push_back(value.toTensor());
               return torch::jit::Stack{recorded.call(tensors)};
             },
             [](const at::Tensor&) { return std::string(); }, /*strict=*/false,
             /*force_outplace=*/false, &recorded.mirror, recorded.names)
      .first->graph;
}

// Returns the example with every sample twice. `first`: of the first input alone; otherwise of all
// inputs that have as many rows, which need not be samples.
std::vector<at::Tensor> Doubled(std::vector<at::Tensor> inputs, bool first) {
  const int64_t samples = inputs[0].size(0);
  for (size_t i = 0; i < (first ? 1 : inputs.size()); ++i)
    if (inputs[i].dim() > 0 && inputs[i].size(0) == samples)
      inputs[i] = at::cat({inputs[i], inputs[i]});
  return inputs;
}

// NaN equals NaN.
bool SameTensor(const at::Tensor& x, const at::Tensor& y) {
  if (!x.defined() || !y.defined()) return x.defined() == y.defined();
  if (x.scalar_type() != y.scalar_type() || x.sizes() != y.sizes()) return false;
  return at::equal(x, y) || x.eq(y).logical_or(x.isnan().logical_and(y.isnan())).all().item<bool>();
}

bool SameConstant(const Value* a, const Value* b) {
  const std::optional<c10::IValue> left = torch::jit::toIValue(a), right = torch::jit::toIValue(b);
  if (!left || !right) return left.has_value() == right.has_value();
  if (left->tagKind() != right->tagKind()) return false;
  if (left->isTensor()) return SameTensor(left->toTensor(), right->toTensor());
  if (left->isDouble() && std::isnan(left->toDouble())) return std::isnan(right->toDouble());
  return *left == *right;
}

// Returns the number of each value: inputs, then the outputs of the nodes in their order.
std::map<const Value*, int> Numbers(torch::jit::Graph& graph) {
  std::map<const Value*, int> numbers;
  const auto add = [&](const Value* value) {
    numbers.emplace(value, static_cast<int>(numbers.size()));
  };
  for (const Value* input : graph.inputs()) add(input);
  for (const Node* node : AllNodes(graph))
    for (const Value* output : node->outputs()) add(output);
  return numbers;
}

// Returns the first operation that differs in another recording: "aten::div in head"; "" if there
// is none. `graph` has the scopes of submodules.
std::string FirstDifference(torch::jit::Graph& graph, torch::jit::Graph& other) {
  const std::vector<Node*> nodes = AllNodes(graph), others = AllNodes(other);
  std::map<const Value*, int> numbers = Numbers(graph), other_numbers = Numbers(other);
  const auto place = [](Node* node) {
    const std::string scope = node->scope() ? node->scope()->namesFromRoot() : "";
    return std::string(node->kind().toQualString()) + (scope.empty() ? "" : " in " + scope);
  };
  const auto same_values = [&](at::ArrayRef<Value*> a, at::ArrayRef<Value*> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](Value* left, Value* right) {
      return numbers[left] == other_numbers[right];
    });
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i == others.size() || nodes[i]->kind() != others[i]->kind() ||
        nodes[i]->outputs().size() != others[i]->outputs().size() ||
        !same_values(nodes[i]->inputs(), others[i]->inputs()))
      return place(nodes[i]);
    if (nodes[i]->kind() == prim::GetAttr &&
        nodes[i]->s(c10::attr::name) != others[i]->s(c10::attr::name))
      return place(nodes[i]) + " " + nodes[i]->s(c10::attr::name);
    if (nodes[i]->kind() != prim::Constant) continue;
    if (SameConstant(nodes[i]->output(), others[i]->output())) continue;
    Node* user = nodes[i];
    while (!user->outputs().empty() && user->output(0)->hasUses() &&
           (user->kind() == prim::Constant || user->kind() == prim::ListConstruct))
      user = user->output(0)->uses()[0].user;
    return place(user);
  }
  if (others.size() > nodes.size()) return place(others[nodes.size()]);
  return same_values(graph.outputs(), other.outputs()) ? "" : "what forward returns";
}

// Holds what a call changes.
struct State {
  std::vector<at::Tensor> buffers;
  at::Tensor random;
};

State StateOf(const torch::nn::Module& module) {
  State state;
  for (const at::Tensor& buffer : module.buffers()) state.buffers.push_back(buffer.clone());
  state.random = at::detail::getDefaultCPUGenerator().get_state();
  return state;
}

void SetState(const torch::nn::Module& module, const State& state) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> buffers = module.buffers();
  for (size_t i = 0; i < buffers.size(); ++i)  // an expanded buffer cannot be copied to
    if (!SameTensor(buffers[i], state.buffers[i])) buffers[i].copy_(state.buffers[i]);
  at::Generator(at::detail::getDefaultCPUGenerator()).set_state(state.random);
}

// Returns the gradients of a weighted sum of all results; those of other parameters are undefined.
std::vector<at::Tensor> GradientsOf(const c10::IValue& result,
                                    const std::vector<at::Tensor>& parameters) {
  at::Tensor total;
  result.visit([&](const c10::IValue& part) {
    if (!part.isTensor() || !part.toTensor().requires_grad()) return false;
    const at::Tensor y = part.toTensor();
    const at::Tensor weights =
        at::arange(y.numel(), y.options().dtype(at::kFloat)).cos().view(y.sizes());
    const at::Tensor sum = (y * weights.to(y.dtype())).sum();
    total = total.defined() ? total + sum : sum;
    return false;
  });
  if (!total.defined()) return std::vector<at::Tensor>(parameters.size());
  if (total.is_complex()) total = at::real(total);
  return torch::autograd::grad({total}, parameters, {}, std::nullopt, false, /*allow_unused=*/true);
}

double LargestFinite(const std::vector<at::Tensor>& tensors) {
  double most = 0;
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined() && tensor.numel() > 0)
      most = std::max(most, at::nan_to_num(tensor.abs(), 0, 0, 0).max().item<double>());
  return most;
}

// `scale` is that of all gradients: the order of sums may differ from call to call, and some
// gradients are 0 but for rounding.
bool AboutTheSame(const at::Tensor& x, const at::Tensor& y, double scale) {
  if (!x.defined() && !y.defined()) return true;
  const at::Tensor a = x.defined() ? x : at::zeros_like(y), b = y.defined() ? y : at::zeros_like(x);
  return at::allclose(a, b, 1e-2, 1e-3 * scale, /*equal_nan=*/true);
}

bool HasGradient(const c10::IValue& result) {
  bool has = false;
  result.visit([&](const c10::IValue& part) {
    has = has || (part.isTensor() && part.toTensor().requires_grad());
    return false;
  });
  return has;
}

// Returns the names of the buffers that a call has made a part of autograd's graph, and takes them
// out of it.
std::set<std::string> DetachBuffers(torch::nn::Module& module) {
  std::set<std::string> joined;
  for (auto& buffer : module.named_buffers())
    if (!buffer->is_leaf()) {
      joined.insert(buffer.key());
      buffer.value().detach_();
    }
  return joined;
}

// Throws Error if the recorded operations have other gradients than the model: Trace records
// neither the gradient mode, nor functions and hooks of autograd. Models without gradients are for
// inference. `before` is the state before the recorded call.
void CheckGradients(const Recorded& recorded, const std::vector<at::Tensor>& inputs,
                    const State& before, Model& model) {
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  uint64_t bytes = 0;
  for (const auto& parameter : recorded.module.named_parameters())
    if (parameter->requires_grad()) {
      names.push_back(parameter.key());
      parameters.push_back(parameter.value());
      bytes += parameter->nbytes();
    }
  constexpr uint64_t kMost = uint64_t{4} << 30;  // both models' gradients take as much
  if (bytes > kMost) {
    model.notes.push_back(
        "Trace did not compare the gradients of the recorded operations with the model's, because "
        "it has more than 4 GiB of parameters");
    return;
  }
  auto copies = [&] {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor& input : inputs) tensors.push_back(input.detach().clone());
    return tensors;
  };
  const State after = StateOf(recorded.module);
  DetachBuffers(recorded.module);
  SetState(recorded.module, before);
  const c10::IValue result = recorded.call(copies());
  std::set<std::string> own_joined;
  std::vector<at::Tensor> own, found;
  bool trains = HasGradient(result);
  if (trains) try {
      own = GradientsOf(result, parameters);
    } catch (const std::exception&) {
      trains = false;
    }
  own_joined = DetachBuffers(recorded.module);
  SetState(recorded.module, before);
  std::set<std::string> joined;
  if (trains) {
    torch::jit::Stack stack = {recorded.mirror._ivalue()};
    for (const at::Tensor& input : copies()) stack.emplace_back(input);
    torch::jit::InterpreterState(torch::jit::Code(model.graph, "traced")).run(stack);
    found = GradientsOf(stack.back(), parameters);
    joined = DetachBuffers(recorded.module);
  }
  SetState(recorded.module, after);
  if (!trains) return;
  const char* const cure =
      "Trace records neither NoGradGuard nor autograd::Function nor register_hook: call detach() "
      "on what is to receive no gradient, also before it is written to a buffer";
  for (const std::string& buffer : joined)
    if (!own_joined.count(buffer))
      throw Error("traced model", "writes a value with a gradient to the buffer \"" + buffer + "\"",
                  cure);
  const double scale = LargestFinite(own);
  for (size_t i = 0; i < names.size(); ++i)
    if (!AboutTheSame(own[i], found[i], scale))
      throw Error("traced model",
                  "the gradient of \"" + names[i] + "\" is not that of the recorded operations",
                  cure);
}

// Records the call with twice as many samples, from the state `before`. Returns null and why not if
// it fails.
std::shared_ptr<torch::jit::Graph> RecordDoubled(const Recorded& recorded,
                                                 const std::vector<at::Tensor>& inputs,
                                                 const State& before, std::string& failure) {
  if (inputs.empty() || inputs[0].dim() == 0 || inputs[0].size(0) == 0) {
    failure = "the first input has no samples";
    return nullptr;
  }
  for (bool first : {false, true}) try {
      SetState(recorded.module, before);
      std::shared_ptr<torch::jit::Graph> graph = Record(recorded, Doubled(inputs, first));
      failure.clear();
      return graph;
    } catch (const std::exception& e) {
      failure = "forward does not run on twice as many: " + WithoutBacktrace(e.what());
      failure = failure.substr(0, failure.find('\n'));
    }
  return nullptr;
}

// Throws Error if the model's graph holds for one call or for one number of samples only. `before`
// is the state before the recorded call.
void CheckOtherCalls(const Recorded& recorded, const std::vector<at::Tensor>& inputs,
                     const State& before, bool fixed_batch, Model& model) {
  const State after = StateOf(recorded.module);
  std::string place = FirstDifference(*model.graph, *Record(recorded, inputs));
  if (!place.empty()) {
    SetState(recorded.module, after);
    throw Error("traced model",
                place +
                    " differs from call to call: on the same inputs, forward computes something "
                    "else the second time",
                "do not read in C++ what changes between calls, such as buffers and random numbers "
                "(item(), branches): compute with tensors, as torch::where does");
  }
  std::shared_ptr<torch::jit::Graph> other;
  std::string failure;
  if (!fixed_batch) other = RecordDoubled(recorded, inputs, before, failure);
  SetState(recorded.module, after);
  if (!failure.empty())
    model.notes.push_back(
        "Trace could not check whether the recorded model holds for another number "
        "of samples than the example's: " +
        failure + "; give every microbatch as many samples as the example");
  if (!other) return;
  place = FirstDifference(*model.graph, *other);
  if (place.empty()) return;
  throw Error("traced model",
              place + " is recorded for " + std::to_string(inputs[0].size(0)) +
                  " samples only: with twice as many, forward computes something else",
              "do not read the number of samples in C++: write x.view({-1, n}), x.flatten(1), or "
              "mean() in place of sum() / x.size(0), and give an RNN its first state, such as "
              "torch::zeros_like(x.select(1, 0)).unsqueeze(0); or set TraceOptions::fixed_batch if "
              "every microbatch has as many samples as the example");
}

}  // namespace

Model TraceCall(torch::nn::Module& module, const std::vector<at::Tensor>& inputs, const Call& call,
                const TraceOptions& options) {
  CurrentRandomKey();
  if (options.inputs.size() > inputs.size())
    throw Error("Trace",
                Counted(options.inputs.size(), "name") + " for " + Counted(inputs.size(), "input"));
  Model model;
  model.file = "traced model";
  std::vector<std::string> names = options.inputs;
  for (size_t i = names.size(); i < inputs.size(); ++i)
    names.push_back(inputs.size() == 1 ? "input" : "input" + std::to_string(i));
  // A copy, because forward may write to its inputs.
  for (const at::Tensor& input : inputs) model.example.push_back(input.detach().clone());
  try {
    int count = 0;
    torch::jit::Module mirror = Mirror(module, count);
    const State before = StateOf(module);
    const Recorded recorded = {module, mirror, call, names};
    model.graph = Record(recorded, inputs);
    for (size_t i = 0; i < inputs.size(); ++i)
      model.graph->inputs()[i + 1]->setDebugName(Identifier(names[i]));
    // Clears the sizes of inputs, because the example's sizes are no constraint.
    for (Value* input : model.graph->inputs())
      if (input->type()->cast<c10::TensorType>()) input->setType(c10::TensorType::get());
    for (Node* node : AllNodes(*model.graph))
      for (Value* output : node->outputs())
        if (output->type()->cast<c10::TensorType>()) output->setType(c10::TensorType::get());
    ObjectTree objects(mirror);
    SetScopes(*model.graph, objects);
    CheckOtherCalls(recorded, inputs, before, options.fixed_batch, model);
    CheckGradients(recorded, inputs, before, model);
    ResolveAttributes(model, objects, [](const at::Tensor& tensor, Weight& weight) {
      weight.data = tensor.detach();
      weight.file_bytes = tensor.numel() ? tensor.storage().nbytes() : 0;
    });
    FinishScript(model);
    model.markers_dropped = false;  // C++ keeps the markers
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& e) {
    const std::string what = e.what_without_backtrace();
    // PyTorch's text ends with the whole tensor.
    if (what.find("Tensor that requires grad as a constant") != std::string::npos)
      throw Error("traced model", "forward uses a weight of a module that is not registered",
                  "register each submodule and parameter: layer = register_module(\"layer\", ...)");
    throw Error("traced model", what);
  }
  return model;
}

}  // namespace pipewright
