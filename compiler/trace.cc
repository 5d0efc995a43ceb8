#include "compiler/trace.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <map>
#include <set>

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

}  // namespace

Model TraceCall(torch::nn::Module& module, const std::vector<at::Tensor>& inputs,
                const std::function<c10::IValue(const std::vector<at::Tensor>&)>& call,
                const TraceOptions& options) {
  CurrentRandomKey();
  Model model;
  model.file = "traced model";
  std::vector<std::string> names = options.inputs;
  for (size_t i = names.size(); i < inputs.size(); ++i)
    names.push_back(inputs.size() == 1 ? "input" : "input" + std::to_string(i));
  try {
    int count = 0;
    torch::jit::Module mirror = Mirror(module, count);
    torch::jit::Stack stack(inputs.begin(), inputs.end());
    auto traced = torch::jit::tracer::trace(
        stack,
        [&](torch::jit::Stack given) {
          std::vector<at::Tensor> tensors;
          for (const c10::IValue& value : given) tensors.push_back(value.toTensor());
          return torch::jit::Stack{call(tensors)};
        },
        [](const at::Tensor&) { return std::string(); }, /*strict=*/false,
        /*force_outplace=*/false, &mirror, names);
    model.graph = traced.first->graph;
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
    ResolveAttributes(model, objects, [](const at::Tensor& tensor, Weight& weight) {
      weight.data = tensor.detach();
      weight.file_bytes = tensor.numel() ? tensor.storage().nbytes() : 0;
    });
    FinishScript(model);
    model.markers_dropped = false;  // C++ keeps the markers
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& e) {
    throw Error("traced model", e.what_without_backtrace());
  }
  return model;
}

}  // namespace pipewright
