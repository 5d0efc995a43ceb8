#include "runtime/trial/lost_gradients.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

#include "base/text.h"
#include "formats/package/package_files.h"
#include "runtime/module/module_code.h"
#include "runtime/trial/quiet_prints.h"
#include "runtime/trial/shapes.h"
#include "runtime/trial/trial.h"

namespace pipewright {

namespace {

using GradNode = torch::autograd::Node;

bool HasGradient(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
}

// For each output of a module: the indices of inputs and weights to which its gradient flows.
struct Reach {
  std::vector<std::set<size_t>> inputs, weights;
};

// Returns the inputs as autograd leaves: those that carry a gradient, or only those in `only`.
std::vector<c10::IValue> Leaves(const Manifest& manifest, const ModuleInfo& info,
                                const std::vector<c10::IValue>& inputs,
                                const std::set<size_t>* only = nullptr) {
  std::vector<c10::IValue> leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    leaves.push_back(inputs[i]);
    if (!inputs[i].isTensor()) continue;
    // Copied because edited code may write to it.
    at::Tensor leaf = inputs[i].toTensor().detach().clone();
    const bool carries = only ? only->count(i) > 0 : manifest.values[info.inputs[i]].gradient;
    leaves.back() = leaf.set_requires_grad(carries && HasGradient(leaf));
  }
  return leaves;
}

// Runs in training mode, or in evaluation mode if the module rejects these inputs in training mode.
std::vector<c10::IValue> RunForGradients(LoadedModule& module,
                                         const std::vector<c10::IValue>& leaves) {
  const at::AutoGradMode on(true);
  try {
    SetTraining(module, true);
    return Run(module, leaves);
  } catch (const std::exception&) {
    SetTraining(module, false);
    return Run(module, leaves);
  }
}

Reach ReachOf(const Manifest& manifest, LoadedModule& module,
              const std::vector<c10::IValue>& inputs) {
  const ModuleInfo& info = manifest.modules[module.index];
  const std::vector<c10::IValue> leaves = Leaves(manifest, info, inputs);
  std::map<const GradNode*, size_t> input_at, weight_at;
  auto add = [](const at::Tensor& tensor, size_t i, std::map<const GradNode*, size_t>& at) {
    if (tensor.requires_grad()) at[torch::autograd::impl::gradient_edge(tensor).function.get()] = i;
  };
  // Held here because gradient accumulators die with their last reference.
  std::vector<decltype(torch::autograd::Edge::function)> held;
  for (size_t i = 0; i < leaves.size(); ++i)
    if (leaves[i].isTensor() && leaves[i].toTensor().requires_grad()) {
      held.push_back(torch::autograd::impl::grad_accumulator(leaves[i].toTensor()));
      add(leaves[i].toTensor(), i, input_at);
    }
  for (size_t w = 0; w < module.weights.size(); ++w)
    if (module.weights[w].requires_grad()) {
      held.push_back(torch::autograd::impl::grad_accumulator(module.weights[w]));
      add(module.weights[w], w, weight_at);
    }
  Reach reach;
  for (const c10::IValue& output : RunForGradients(module, leaves)) {
    reach.inputs.emplace_back();
    reach.weights.emplace_back();
    if (!output.isTensor() || !output.toTensor().requires_grad()) continue;
    std::vector<const GradNode*> left = {
        torch::autograd::impl::gradient_edge(output.toTensor()).function.get()};
    std::unordered_set<const GradNode*> seen(left.begin(), left.end());
    while (!left.empty()) {
      const GradNode* node = left.back();
      left.pop_back();
      if (auto at = input_at.find(node); at != input_at.end())
        reach.inputs.back().insert(at->second);
      if (auto at = weight_at.find(node); at != weight_at.end())
        reach.weights.back().insert(at->second);
      for (const torch::autograd::Edge& edge : node->next_edges())
        if (edge.function && seen.insert(edge.function.get()).second)
          left.push_back(edge.function.get());
    }
  }
  // If an input arrives as integers, the module that made it is to blame, not this one.
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].isTensor() && manifest.values[info.inputs[i]].gradient &&
        !HasGradient(inputs[i].toTensor()))
      for (std::set<size_t>& reached : reach.inputs) reached.insert(i);
  return reach;
}

bool RequiresGrad(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().requires_grad();
  if (!value.isTensorList()) return false;
  for (const at::Tensor& tensor : value.toTensorVector())
    if (tensor.requires_grad()) return true;
  return false;
}

// Returns text such as "FILE:31: y = torch.detach(x)".
std::string Shown(const torch::jit::Node* node, const std::string& file) {
  // TorchScript does not record the line of `x.data`: take that of the operation that uses it.
  while (!node->sourceRange().file_line_col() && !node->outputs().empty() &&
         node->output(0)->hasUses())
    node = node->output(0)->uses()[0].user;
  const torch::jit::SourceRange& range = node->sourceRange();
  if (!range.file_line_col()) return file;
  std::string line =
      range.source()->get_line(range.source()->lineno_for_offset(range.start())).str();
  line.erase(0, line.find_first_not_of(" \t"));
  return LineOf(node, file) + ": " + line.substr(0, line.find_last_not_of(" \t\r\n") + 1);
}

// Returns the first operation that receives a differentiable value from these inputs and weights
// and returns none ("FILE:31: y = torch.detach(x)"), or "" if no single operation does.
std::string StoppedAt(const Manifest& manifest, LoadedModule& module, const std::string& file,
                      const std::vector<c10::IValue>& inputs, const std::set<size_t>& lost_inputs,
                      const std::set<size_t>& lost_weights) {
  const ModuleInfo& info = manifest.modules[module.index];
  auto graph =
      torch::jit::toGraphFunction(module.self->type()->getMethod("forward")).graph()->copy();
  torch::jit::Inline(*graph);
  // The operations that contribute to the outputs.
  std::unordered_set<const torch::jit::Node*> used;
  std::vector<const torch::jit::Node*> left = {graph->return_node()};
  while (!left.empty()) {
    const torch::jit::Node* node = left.back();
    left.pop_back();
    for (const torch::jit::Value* input : node->inputs())
      if (used.insert(input->node()).second) left.push_back(input->node());
  }
  // All their results become outputs.
  auto watched = [](const torch::jit::Value* value) {
    return value->type()->isSubtypeOf(*c10::TensorType::get()) ||
           value->type()->isSubtypeOf(*c10::ListType::ofTensors());
  };
  while (!graph->outputs().empty()) graph->eraseOutput(graph->outputs().size() - 1);
  std::vector<const torch::jit::Value*> values;
  for (torch::jit::Node* node : graph->nodes())
    for (torch::jit::Value* output : node->outputs())
      if (watched(output)) graph->registerOutput(output), values.push_back(output);
  for (size_t w = 0; w < module.weights.size(); ++w) {
    at::Tensor weight = module.weights[w].detach();
    weight.set_requires_grad(lost_weights.count(w) > 0);
    module.self->setAttr(info.held[w].name, weight);
  }
  torch::jit::Stack stack = {module.self};
  for (c10::IValue& leaf : Leaves(manifest, info, inputs, &lost_inputs))
    stack.push_back(std::move(leaf));
  std::unordered_map<const torch::jit::Value*, bool> carries;
  for (size_t i = 0; i < stack.size(); ++i) carries[graph->inputs()[i]] = RequiresGrad(stack[i]);
  try {
    at::AutoGradMode on(true);
    torch::jit::Code code(graph, info.name);
    torch::jit::InterpreterState(code).run(stack);
  } catch (const std::exception&) {
    return "";
  }
  for (size_t i = 0; i < values.size(); ++i) carries[values[i]] = RequiresGrad(stack[i]);
  const torch::jit::Node* off = nullptr;  // the node that disables gradients
  for (const torch::jit::Node* node : graph->nodes()) {
    if (node->kind() == c10::Symbol::aten("set_grad_enabled"))
      off = torch::jit::constant_as<bool>(node->input(0)).value_or(true) ? nullptr : node;
    auto given = [&](const torch::jit::Value* value) { return carries[value]; };
    const auto outputs = node->outputs();
    if (!used.count(node) || !std::any_of(outputs.begin(), outputs.end(), watched) ||
        !std::any_of(node->inputs().begin(), node->inputs().end(), given) ||
        std::any_of(outputs.begin(), outputs.end(), given))
      continue;
    return Shown(off ? off : node, file);
  }
  return "";
}

// Returns text such as "modules 0-1 and 3".
std::string ModulesText(const std::vector<int>& modules) {
  std::vector<std::string> parts;
  for (size_t m = 0; m < modules.size(); ++m) {
    const int first = modules[m];
    while (m + 1 < modules.size() && modules[m + 1] == modules[m] + 1) ++m;
    parts.push_back(std::to_string(first) +
                    (modules[m] > first ? "-" + std::to_string(modules[m]) : ""));
  }
  return (modules.size() == 1 ? "module " : "modules ") + Join(parts, ", ");
}

bool ReachesAsCompiled(const ModuleInfo& info, int output, int input) {
  auto missed = info.no_gradient.find(output);
  return missed == info.no_gradient.end() ||
         std::count(missed->second.inputs.begin(), missed->second.inputs.end(), input) == 0;
}

// Returns the module's weights, by place in `held`, that got a gradient when it was compiled.
std::set<size_t> TrainedAsCompiled(const ModuleInfo& info, const std::vector<bool>& before) {
  std::set<size_t> trained;
  for (int output : info.outputs) {
    if (!before[output]) continue;
    auto found = info.no_gradient.find(output);
    const std::vector<std::string> missed =
        found == info.no_gradient.end() ? std::vector<std::string>() : found->second.weights;
    for (size_t w = 0; w < info.held.size(); ++w)
      if (info.held[w].requires_grad &&
          std::find(missed.begin(), missed.end(), info.held[w].name) == missed.end())
        trained.insert(w);
  }
  return trained;
}

// Returns which values a gradient reaches, computed from the last module to the first: with the
// reach of edited modules, or, if `reach` is empty, as compiled.
std::vector<bool> Reached(const Manifest& manifest, const std::vector<int>& losses,
                          const std::map<int, Reach>& reach) {
  std::vector<bool> reached(manifest.values.size(), false);
  for (int id : losses) reached[id] = manifest.values[id].gradient;
  for (int m = static_cast<int>(manifest.modules.size()) - 1; m >= 0; --m) {
    const ModuleInfo& info = manifest.modules[m];
    auto measured = reach.find(m);
    for (size_t o = 0; o < info.outputs.size(); ++o) {
      if (!reached[info.outputs[o]]) continue;
      for (size_t i = 0; i < info.inputs.size(); ++i)
        if (manifest.values[info.inputs[i]].gradient &&
            (measured == reach.end() ? ReachesAsCompiled(info, info.outputs[o], info.inputs[i])
                                     : measured->second.inputs[o].count(i) > 0))
          reached[info.inputs[i]] = true;
    }
  }
  return reached;
}

}  // namespace

std::vector<std::string> LostGradients(const std::string& package, const Manifest& manifest,
                                       const std::vector<TensorSpec>& inputs,
                                       const std::vector<int>& losses) {
  if (std::none_of(manifest.modules.begin(), manifest.modules.end(),
                   [&](const ModuleInfo& module) { return IsEdited(package, module); }))
    return {};
  const QuietPrints quiet;
  std::map<int, Reach> reach;
  std::map<int, std::vector<c10::IValue>> given;
  InferShapesAndObserve(package, manifest, inputs,
                        [&](LoadedModule& module, const std::vector<c10::IValue>& values) {
                          try {
                            reach[module.index] = ReachOf(manifest, module, values);
                            given[module.index] = values;
                          } catch (const std::exception&) {
                            reach.erase(module.index);  // the run itself reports the error
                          }
                        });
  const std::vector<bool> before = Reached(manifest, losses, {});
  const std::vector<bool> now = Reached(manifest, losses, reach);
  auto any = [](const std::vector<int>& ids, const std::vector<bool>& which) {
    return std::any_of(ids.begin(), ids.end(), [&](int id) { return which[id]; });
  };
  std::vector<int> lost;
  std::vector<std::string> found, lines;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    const ModuleInfo& info = manifest.modules[m];
    const std::set<size_t> trained = TrainedAsCompiled(info, before);
    auto measured = reach.find(static_cast<int>(m));
    if (!any(info.outputs, before)) continue;
    if (!any(info.outputs, now) || measured == reach.end()) {
      if (!trained.empty() && !any(info.outputs, now)) lost.push_back(static_cast<int>(m));
      continue;
    }
    std::set<size_t> inputs_through, weights_through, inputs_lost, weights_lost;
    for (size_t o = 0; o < info.outputs.size(); ++o) {
      if (!now[info.outputs[o]]) continue;
      const Reach& of = measured->second;
      inputs_through.insert(of.inputs[o].begin(), of.inputs[o].end());
      weights_through.insert(of.weights[o].begin(), of.weights[o].end());
    }
    for (size_t i = 0; i < info.inputs.size(); ++i)
      if (before[info.inputs[i]] && !now[info.inputs[i]] && !inputs_through.count(i))
        inputs_lost.insert(i);
    std::vector<std::string> names;
    for (size_t w : trained)
      if (!weights_through.count(w)) {
        weights_lost.insert(w);
        names.push_back(info.held[w].name);
      }
    auto line_of = [&](const std::set<size_t>& of_inputs, const std::set<size_t>& of_weights) {
      LoadedModule module =
          LoadModule(package, manifest, static_cast<int>(m), WeightSource::kZeros);
      const std::string file = package + "/" + info.code;
      const std::string line = StoppedAt(manifest, module, file, given.at(static_cast<int>(m)),
                                         of_inputs, of_weights);
      return line.empty() ? file : line;
    };
    const bool all = !trained.empty() && names.size() == trained.size();
    if (all) lost.push_back(static_cast<int>(m));
    if (all || !inputs_lost.empty())
      lines.push_back(line_of(inputs_lost, all ? weights_lost : std::set<size_t>()));
    if (!all && !names.empty())
      found.push_back(Join(names, ", ") + (names.size() == 1 ? " gets" : " get") +
                      " no gradient: " + line_of({}, weights_lost));
  }
  if (!lost.empty())
    found.insert(found.begin(), ModulesText(lost) + (lost.size() == 1 ? " gets" : " get") +
                                    " no gradient any more: " + Join(lines, "; "));
  return found;
}

}  // namespace pipewright
