#include "runtime/stage/run_backward.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace pipewright {

namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

struct Place {
  Node* node = nullptr;
  int waits = 0;  // edges that have not delivered a gradient yet
  int leaf = -1;  // index into the leaves; -1: a node to run
  variable_list inputs;
};

// Adds like the engine's InputBuffer, so that sums have the same bits and layout.
void AddInto(at::Tensor& sum, at::Tensor&& more) {
  if (!more.defined()) return;
  if (!sum.defined())
    sum = std::move(more);
  else if (sum.layout() != at::kStrided)
    sum = more.add(sum);
  else if (sum.is_non_overlapping_and_dense() && !sum._is_zerotensor() && !sum.is_nested() &&
           sum.use_count() == 1 && sum.storage().use_count() == 1)
    sum = sum.add_(more);
  else
    sum = sum.add(more);
}

class Backward {
 public:
  // Returns true if every path ends at a requested leaf and no node on the way has a hook.
  bool Find(const edge_list& roots, const edge_list& leaves) {
    places_.reserve(2 * leaves.size() + 8);
    index_.reserve(2 * leaves.size() + 8);
    for (size_t i = 0; i < leaves.size(); ++i) {
      const auto [place, fresh] = Visit(leaves[i].function.get());
      if (!fresh || !leaves[i].function->next_edges().empty()) return false;
      places_[place].leaf = static_cast<int>(i);
    }
    for (const Edge& root : roots)
      if (!Follow(root)) return false;
    while (!open_.empty()) {
      Node* node = open_.back();
      open_.pop_back();
      bool ends = true;
      if (!node->pre_hooks().empty() || !node->post_hooks().empty() ||
          !node->tensor_pre_hooks().empty() || !node->retains_grad_hooks().empty())
        return false;
      for (const Edge& edge : node->next_edges()) {
        if (!edge.is_valid()) continue;
        ends = false;
        Follow(edge);
      }
      if (ends) return false;
    }
    return true;
  }

  variable_list Run(const edge_list& roots, variable_list gradients, size_t leaves) {
    at::AutoGradMode no_graph(false);
    found_.resize(leaves);
    Validate(roots, gradients);
    Deliver(roots, gradients);
    while (!ready_.empty()) {
      std::pop_heap(ready_.begin(), ready_.end(), Earlier);
      Node& node = *ready_.back().first;
      variable_list inputs = std::move(places_[ready_.back().second].inputs);
      ready_.pop_back();
      node.will_release_variables();
      variable_list outputs = node(std::move(inputs));
      Validate(node.next_edges(), outputs);
      node.release_variables();
      Deliver(node.next_edges(), outputs);
    }
    return std::move(found_);
  }

 private:
  using Ready = std::pair<Node*, size_t>;
  // Nodes that forward ran last come first.
  static bool Earlier(const Ready& a, const Ready& b) {
    return a.first->sequence_nr() < b.first->sequence_nr();
  }

  static void Validate(const edge_list& edges, variable_list& gradients) {
    torch::autograd::validate_outputs(edges, gradients,
                                      [](const std::string& what) { return what; });
  }

  std::pair<size_t, bool> Visit(Node* node) {
    auto [at, fresh] = index_.emplace(node, places_.size());
    if (fresh) places_.emplace_back().node = node;
    return {at->second, fresh};
  }

  bool Follow(const Edge& edge) {
    if (!edge.is_valid()) return false;
    const auto [place, fresh] = Visit(edge.function.get());
    ++places_[place].waits;
    if (fresh) open_.push_back(edge.function.get());
    return true;
  }

  void Deliver(const edge_list& edges, variable_list& gradients) {
    for (size_t i = 0; i < edges.size(); ++i) {
      if (!edges[i].is_valid()) continue;
      const size_t at = index_.find(edges[i].function.get())->second;
      Place& place = places_[at];
      if (place.leaf < 0) place.inputs.resize(place.node->num_inputs());
      AddInto(place.leaf < 0 ? place.inputs[edges[i].input_nr]
                             : found_[static_cast<size_t>(place.leaf)],
              std::move(gradients[i]));
      if (--place.waits > 0 || place.leaf >= 0) continue;
      ready_.emplace_back(place.node, at);
      std::push_heap(ready_.begin(), ready_.end(), Earlier);
    }
  }

  ska::flat_hash_map<const Node*, size_t> index_;
  std::vector<Place> places_;
  std::vector<Node*> open_;
  std::vector<Ready> ready_;
  variable_list found_;
};

}  // namespace

edge_list EdgesOf(const std::vector<at::Tensor>& tensors) {
  edge_list edges;
  edges.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors)
    edges.push_back(torch::autograd::impl::gradient_edge(tensor));
  return edges;
}

std::vector<at::Tensor> RunBackward(const edge_list& roots, std::vector<at::Tensor> gradients,
                                    const edge_list& leaves) {
  if (Backward backward; backward.Find(roots, leaves))
    return backward.Run(roots, std::move(gradients), leaves.size());
  return torch::autograd::Engine::get_default_engine().execute(
      roots, gradients, /*keep_graph=*/false, /*create_graph=*/false, /*accumulate_grad=*/false,
      leaves);
}

}  // namespace pipewright
