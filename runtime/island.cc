#include "runtime/island.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

namespace pipewright {

namespace {

// The outputs that have a gradient, and these.
std::pair<Tensors, Tensors> Roots(const Kept& kept, Tensors& gradients) {
  std::pair<Tensors, Tensors> roots;
  for (size_t i = 0; i < kept.outputs.size(); ++i) {
    if (!kept.outputs[i].defined() || !gradients[i].defined()) continue;
    roots.first.push_back(kept.outputs[i]);
    roots.second.push_back(std::move(gradients[i]));
  }
  gradients.clear();
  return roots;
}

// `found` has one entry for each of `places` that `wanted` picks.
template <typename Wanted>
Tensors Spread(const Tensors& places, Tensors& found, size_t& next, Wanted wanted) {
  Tensors spread(places.size());
  for (size_t i = 0; i < places.size(); ++i)
    if (wanted(places[i])) spread[i] = std::move(found[next++]);
  return spread;
}

bool IsDefined(const at::Tensor& tensor) { return tensor.defined(); }
bool IsTrained(const at::Tensor& weight) { return weight.requires_grad(); }

template <typename Wanted>
Tensors Pick(const Tensors& from, Wanted wanted, Tensors picked = {}) {
  for (const at::Tensor& tensor : from)
    if (wanted(tensor)) picked.push_back(tensor);
  return picked;
}

}  // namespace

std::vector<c10::IValue> ForwardIsland(const LoadedModule& module, std::vector<c10::IValue> inputs,
                                       const std::vector<bool>& wanted, Kept* kept) {
  at::AutoGradMode mode(kept != nullptr);
  if (kept) {
    kept->inputs.resize(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!wanted[i]) continue;
      // The same memory and version, without the cost of a call through the dispatcher.
      kept->inputs[i] = inputs[i].toTensor().tensor_data().set_requires_grad(true);
      inputs[i] = kept->inputs[i];
    }
  }
  std::vector<c10::IValue> outputs = Run(module, std::move(inputs));
  for (c10::IValue& output : outputs) {
    if (!output.isTensor()) {
      if (kept) kept->outputs.emplace_back();
      continue;
    }
    const at::Tensor& tensor = output.toTensor();
    if (kept) kept->outputs.push_back(tensor.requires_grad() ? tensor : at::Tensor());
    output = ToTensor(output);
  }
  return outputs;
}

ModuleGradients BackwardIsland(const LoadedModule& module, Kept kept, Tensors gradients) {
  auto [roots, root_gradients] = Roots(kept, gradients);
  Tensors leaves = Pick(module.weights, IsTrained, Pick(kept.inputs, IsDefined));
  Tensors found(leaves.size());
  kept.outputs.clear();
  if (!roots.empty() && !leaves.empty())
    found = torch::autograd::grad(roots, leaves, root_gradients, /*retain_graph=*/false,
                                  /*create_graph=*/false, /*allow_unused=*/true);
  roots.clear();
  size_t next = 0;
  ModuleGradients result;
  result.inputs = Spread(kept.inputs, found, next, IsDefined);
  result.weights = Spread(module.weights, found, next, IsTrained);
  return result;
}

Tensors InputGradientsOf(Kept kept, Tensors gradients, WeightTail& tail) {
  auto [roots, root_gradients] = Roots(kept, gradients);
  Tensors leaves = Pick(kept.inputs, IsDefined);
  Tensors found(leaves.size());
  kept.outputs.clear();
  if (!roots.empty()) found = InputGradients(roots, root_gradients, leaves, tail);
  roots.clear();
  size_t next = 0;
  return Spread(kept.inputs, found, next, IsDefined);
}

Tensors WeightGradientsOf(const LoadedModule& module, WeightTail tail) {
  Tensors found = WeightGradients(std::move(tail), Pick(module.weights, IsTrained));
  size_t next = 0;
  return Spread(module.weights, found, next, IsTrained);
}

at::Tensor SumInOrder(Gifts gifts) {
  std::sort(gifts.begin(), gifts.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  at::Tensor sum = gifts[0].second;
  for (size_t i = 1; i < gifts.size(); ++i)
    sum = i == 1 ? sum.add(gifts[i].second) : sum.add_(gifts[i].second);
  return sum;
}

void Accumulate(at::Tensor& sum, const at::Tensor& gradient, at::ScalarType type) {
  // The engine may hand out a tensor that something else also sees (two biases of one sum); such a
  // one is copied.
  if (sum.defined())
    sum.add_(gradient);
  else if (type != gradient.scalar_type())
    sum = gradient.to(type, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  else if (IsPlain(gradient) && gradient.use_count() == 1 && gradient.storage().use_count() == 1)
    sum = gradient;
  else
    sum = gradient.clone(at::MemoryFormat::Contiguous);
}

}  // namespace pipewright
