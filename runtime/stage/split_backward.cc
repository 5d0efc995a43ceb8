#include "runtime/stage/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>

#include "runtime/stage/run_backward.h"

namespace pipewright {

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Releases what a node saved as soon as it has run.
class Release : public torch::autograd::FunctionPostHook {
 public:
  explicit Release(Node* node) : node_(node) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    node_->release_variables();
    return outputs;
  }

 private:
  Node* node_;  // owns this hook
};

struct Visited {
  std::vector<Node*> nodes;                  // every node once, after those that it leads to
  std::unordered_map<Node*, bool> to_input;  // true if an input is reachable

  bool ToInput(const Edge& edge) const { return to_input.at(edge.function.get()); }
  bool ToWeights(const Edge& edge) const { return edge.is_valid() && !ToInput(edge); }
};

// Iterative, because graphs may be thousands of nodes deep.
Visited Visit(const edge_list& roots, const std::set<Node*>& targets) {
  Visited visited;
  std::vector<std::pair<Node*, size_t>> stack;  // a node and the index of its next edge
  auto enter = [&](Node* node) {
    if (node && visited.to_input.emplace(node, targets.count(node) > 0).second)
      stack.emplace_back(node, 0);
  };
  for (const Edge& root : roots) {
    enter(root.function.get());
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->num_outputs()) {
        enter(node->next_edge(next++).function.get());
        continue;
      }
      bool& reaches = visited.to_input[node];
      for (const Edge& edge : node->next_edges())
        reaches = reaches || (edge.is_valid() && visited.ToInput(edge));
      visited.nodes.push_back(node);
      stack.pop_back();
    }
  }
  return visited;
}

// Returns the nodes that run only in I. If such a node's gradient of a weight is summed with
// others, some of which are computed in W, the node runs in both halves.
std::set<Node*> InIAlone(const Visited& visited, const edge_list& later_roots,
                         const std::set<Node*>& targets) {
  std::set<Node*> alone, later;
  for (Node* node : visited.nodes)
    if (visited.to_input.at(node) && !targets.count(node) && RunsInIAlone(node->name()))
      alone.insert(node);
  if (alone.empty()) return alone;
  auto in_w = [&](const Node* node) {
    for (const Edge& edge : node->next_edges())
      if (visited.ToWeights(edge)) later.insert(edge.function.get());
  };
  for (const Edge& root : later_roots) later.insert(root.function.get());
  for (Node* node : visited.nodes)
    if (!alone.count(node)) in_w(node);
  for (bool fewer = true; fewer;) {
    fewer = false;
    for (auto node = alone.begin(); node != alone.end();) {
      const edge_list& edges = (*node)->next_edges();
      const bool waits = std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) {
        return visited.ToWeights(edge) && later.count(edge.function.get());
      });
      if (waits) in_w(*node);
      fewer = fewer || waits;
      node = waits ? alone.erase(node) : std::next(node);
    }
  }
  return alone;
}

}  // namespace

bool RunsInIAlone(const std::string& node) {
  for (const char* kernel :
       {"RnnLayer", "CudnnRnn", "MiopenRnn", "MpsLstm", "FusedLstm", "FusedGru", "ScaledDotProduct",
        "PreluKernel", "BatchNorm", "LayerNorm", "GroupNorm", "RmsNorm", "CopySlices"})
    if (node.find(kernel) != std::string::npos) return true;
  return false;
}

std::vector<at::Tensor> InputGradients(const std::vector<at::Tensor>& roots,
                                       const std::vector<at::Tensor>& gradients,
                                       const std::vector<at::Tensor>& inputs, WeightTail& tail) {
  edge_list root_edges, outputs;
  std::set<Node*> targets;
  for (const at::Tensor& root : roots)
    root_edges.push_back(torch::autograd::impl::gradient_edge(root));
  for (const at::Tensor& input : inputs) {
    outputs.push_back(torch::autograd::impl::gradient_edge(input));
    targets.insert(outputs.back().function.get());
  }
  Visited visited = Visit(root_edges, targets);

  // The gradient of a root that leads only to weights waits for W unchanged.
  edge_list begin;
  variable_list begin_gradients;
  for (size_t i = 0; i < roots.size(); ++i) {
    bool now = visited.ToInput(root_edges[i]);
    (now ? begin : tail.edges).push_back(root_edges[i]);
    (now ? begin_gradients : tail.gradients).push_back(gradients[i]);
  }
  if (begin.empty()) return std::vector<at::Tensor>(inputs.size());

  const std::set<Node*> alone = InIAlone(visited, tail.edges, targets);
  std::vector<Node*> both;
  std::set<std::pair<Node*, uint32_t>> handed_on;
  for (Node* node : visited.nodes) {
    if (!visited.to_input[node] || targets.count(node)) continue;
    bool weights = false;
    for (const Edge& edge : node->next_edges()) weights = weights || visited.ToWeights(edge);
    if (weights && !alone.count(node)) {
      both.push_back(node);
      for (uint32_t i = 0; i < node->num_inputs(); ++i) outputs.emplace_back(node->getptr(), i);
      continue;
    }
    for (const Edge& edge : node->next_edges())
      if (visited.ToWeights(edge) &&
          handed_on.emplace(edge.function.get(), edge.input_nr).second)
        outputs.push_back(edge);
    node->add_post_hook(std::make_unique<Release>(node));
  }
  // The engine tells nodes which gradients are needed.
  variable_list found = torch::autograd::Engine::get_default_engine().execute(
      begin, begin_gradients, /*keep_graph=*/true, /*create_graph=*/false,
      /*accumulate_grad=*/false, outputs);

  for (size_t i = inputs.size(); i < outputs.size(); ++i) {
    if (!found[i].defined()) continue;
    tail.edges.push_back(outputs[i]);
    tail.gradients.push_back(std::move(found[i]));
  }
  // Otherwise W would continue through these nodes to other uses of a weight, which are separate
  // roots.
  for (Node* node : both) {
    auto* write = dynamic_cast<torch::autograd::CopySlices*>(node);
    for (uint32_t i = 0; i < node->num_outputs(); ++i) {
      if (!node->next_edge(i).is_valid() || !visited.ToInput(node->next_edge(i))) continue;
      node->next_edges()[i] = Edge();
      if (write) write->fn->next_edges()[i] = Edge();  // it makes sure that both have the same
    }
  }
  found.resize(inputs.size());
  return found;
}

std::vector<at::Tensor> WeightGradients(WeightTail tail, const std::vector<at::Tensor>& weights) {
  if (tail.edges.empty() || weights.empty()) return std::vector<at::Tensor>(weights.size());
  return RunBackward(tail.edges, std::move(tail.gradients), EdgesOf(weights));
}

}  // namespace pipewright
