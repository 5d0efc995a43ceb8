#include "runtime/stage/island.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "runtime/exec/clock.h"
#include "runtime/module/saved_buffers.h"
#include "runtime/recorded/choose_body.h"
#include "runtime/stage/run_backward.h"
#include "runtime/stage/spot_check.h"

namespace pipewright {

namespace {

// Returns the outputs that have a gradient, and their gradients.
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

// Distributes `found`, which has one entry per element of `places` that `wanted` selects.
template <typename Wanted>
Tensors Spread(const Tensors& places, Tensors& found, size_t& next, Wanted wanted) {
  Tensors spread(places.size());
  for (size_t i = 0; i < places.size(); ++i)
    if (wanted(places[i])) spread[i] = std::move(found[next++]);
  return spread;
}

// A view of an input that was made without gradient mode reports requires_grad like the input.
bool HasWayBack(const at::Tensor& tensor) {
  return tensor.requires_grad() && torch::autograd::impl::gradient_edge(tensor).is_valid();
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

// Copies a value whose memory is a buffer: the next microbatch's forward may overwrite it before
// all consumers have read it.
static at::Tensor HandedOn(const LoadedModule& module, const c10::IValue& output) {
  at::Tensor tensor = ToTensor(output);
  for (size_t w : module.buffers)
    if (tensor.is_alias_of(module.weights[w])) return CopyAsItLies(tensor);
  return tensor;
}

static std::vector<c10::IValue> ForwardByLists(const LoadedModule& module,
                                               std::vector<c10::IValue> inputs, Kept& kept) {
  kept.run = std::make_shared<RecordedRun>();
  std::vector<c10::IValue> outputs =
      ForwardRecorded(module, kept.body, std::move(inputs), *kept.run);
  for (size_t i = 0; i < outputs.size(); ++i) {
    kept.outputs.push_back(kept.body->graph->gives_gradient[i] ? outputs[i].toTensor()
                                                               : at::Tensor());
    if (outputs[i].isTensor()) outputs[i] = HandedOn(module, outputs[i]);
  }
  return outputs;
}

std::vector<c10::IValue> ForwardByAutograd(const LoadedModule& module,
                                           std::vector<c10::IValue> inputs,
                                           const std::vector<bool>& wanted, Kept* kept) {
  at::AutoGradMode mode(kept != nullptr);
  if (kept) {
    kept->inputs.resize(inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!wanted[i]) continue;
      // Shares memory and version, without the cost of a dispatcher call.
      kept->inputs[i] = inputs[i].toTensor().tensor_data().set_requires_grad(true);
      inputs[i] = kept->inputs[i];
    }
  }
  const double start = Now();
  std::vector<c10::IValue> outputs = Run(module, std::move(inputs));
  if (kept && kept->body) NoteForward(*kept->body, Now() - start);
  for (c10::IValue& output : outputs) {
    if (!output.isTensor()) {
      if (kept) kept->outputs.emplace_back();
      continue;
    }
    const at::Tensor& tensor = output.toTensor();
    if (kept) kept->outputs.push_back(HasWayBack(tensor) ? tensor : at::Tensor());
    output = HandedOn(module, output);
  }
  return outputs;
}

std::vector<c10::IValue> ForwardIsland(const LoadedModule& module, std::vector<c10::IValue> inputs,
                                       const std::vector<bool>& wanted, Kept* kept) {
  if (kept && module.recorded) {
    at::AutoGradMode mode(true);
    kept->body = BodyFor(*module.recorded, inputs, wanted);
    if (kept->body && IsReady(module, kept->body, inputs)) {
      std::shared_ptr<SpotCheck> check;
      if (module.recorded->spot_checks && IsSpotChecked(CurrentRandomKey(), module.index))
        check = BeginSpotCheck(module, inputs, *kept->body);
      std::vector<c10::IValue> outputs;
      try {
        outputs = ForwardByLists(module, inputs, *kept);
      } catch (const std::exception&) {
        // Autograd's body reports the error and its line in the code.
        Undo(module, *kept->run);
        kept->run.reset();
        kept->outputs.clear();
      }
      if (kept->run && check) CheckForward(module, *check, *kept->body, outputs);
      if (kept->run) {
        kept->run->check = std::move(check);
        return outputs;
      }
    }
  }
  return ForwardByAutograd(module, std::move(inputs), wanted, kept);
}

// The gradients do not fit the recorded lists: runs forward again by autograd, and uses autograd
// for all further runs.
static void RunByAutograd(const LoadedModule& module, Kept& kept) {
  RefuseLists(*kept.body, "gradients come in several forms");
  Kept again;
  const RandomKey key = CurrentRandomKey();
  SetRandomKey(kept.run->key);
  SavedBuffers buffers(module);
  Undo(module, *kept.run);
  ForwardIsland(module, std::move(kept.run->given), kept.body->wanted, &again);
  SetRandomKey(key);
  kept = std::move(again);
}

ModuleGradients BackwardIsland(const LoadedModule& module, Kept kept, Tensors gradients) {
  if (kept.run && !GradientsFit(*kept.body, gradients)) RunByAutograd(module, kept);
  if (kept.run) {
    kept.outputs.clear();
    const std::shared_ptr<SpotCheck> check = kept.run->check;
    ModuleGradients found, expected;
    if (check) expected = BackwardOfCheck(module, *check, gradients);
    std::tie(found.inputs, found.weights) =
        BackwardRecorded(module, std::move(*kept.run), std::move(gradients));
    if (check) {
      CheckGradients(module, *check, *kept.body, "input", found.inputs, expected.inputs);
      CheckGradients(module, *check, *kept.body, "weight", found.weights, expected.weights);
    }
    return found;
  }
  if (kept.body) NoteGradients(*kept.body, kept.outputs, gradients);
  auto [roots, root_gradients] = Roots(kept, gradients);
  Tensors leaves = Pick(module.weights, IsTrained, Pick(kept.inputs, IsDefined));
  Tensors found(leaves.size());
  kept.outputs.clear();
  if (!roots.empty() && !leaves.empty())
    found = RunBackward(EdgesOf(roots), std::move(root_gradients), EdgesOf(leaves));
  roots.clear();
  size_t next = 0;
  ModuleGradients result;
  result.inputs = Spread(kept.inputs, found, next, IsDefined);
  result.weights = Spread(module.weights, found, next, IsTrained);
  return result;
}

Tensors InputGradientsOf(const LoadedModule& module, Kept kept, Tensors gradients,
                         WeightTail& tail) {
  if (kept.run && !GradientsFit(*kept.body, gradients)) RunByAutograd(module, kept);
  if (kept.run) {
    kept.outputs.clear();
    tail.run = std::move(kept.run);
    const std::shared_ptr<SpotCheck>& check = tail.run->check;
    ModuleGradients expected;
    if (check) expected = BackwardOfCheck(module, *check, gradients);
    Tensors found = InputGradientsRecorded(module, *tail.run, std::move(gradients));
    if (check) {
      CheckGradients(module, *check, *kept.body, "input", found, expected.inputs);
      check->of_weights = std::move(expected.weights);
    }
    return found;
  }
  if (kept.body) NoteGradients(*kept.body, kept.outputs, gradients);
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
  if (tail.run) {
    const std::shared_ptr<SpotCheck> check = tail.run->check;
    const std::shared_ptr<RecordedBody> body = tail.run->body;
    Tensors found = WeightGradientsRecorded(module, std::move(*tail.run));
    if (check) CheckGradients(module, *check, *body, "weight", found, check->of_weights);
    return found;
  }
  Tensors found = WeightGradients(std::move(tail), Pick(module.weights, IsTrained));
  size_t next = 0;
  return Spread(module.weights, found, next, IsTrained);
}

at::Tensor SumInOrder(GradientTerms gradient_terms) {
  std::sort(gradient_terms.begin(), gradient_terms.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  at::Tensor sum = gradient_terms[0].second;
  for (size_t i = 1; i < gradient_terms.size(); ++i)
    sum = i == 1 ? sum.add(gradient_terms[i].second) : sum.add_(gradient_terms[i].second);
  return sum;
}

void Accumulate(at::Tensor& sum, const at::Tensor& gradient, at::ScalarType type) {
  // The engine may return a tensor that is also used elsewhere (two biases of one sum); it is
  // copied.
  if (sum.defined())
    sum.add_(gradient);
  else if (type != gradient.scalar_type())
    sum = gradient.to(type, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
  else if (gradient.is_contiguous() && !gradient.is_conj() && !gradient.is_neg() &&
           gradient.use_count() == 1 && gradient.storage().use_count() == 1)
    sum = gradient;
  else
    sum = gradient.clone(at::MemoryFormat::Contiguous);
}

}  // namespace pipewright
