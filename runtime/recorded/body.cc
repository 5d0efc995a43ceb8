#include "runtime/recorded/body.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <bit>

#include "runtime/module/module.h"
#include "runtime/recorded/replay.h"

namespace pipewright {

namespace {

bool SameScalar(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble())
    return std::bit_cast<uint64_t>(a.toDouble()) == std::bit_cast<uint64_t>(b.toDouble());
  if (a.isBool()) return a.toBool() == b.toBool();
  return a.isNone();
}

bool Matches(const RecordedBody& body, const std::vector<c10::IValue>& inputs,
             const std::vector<bool>& wanted) {
  if (body.wanted != wanted) return false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool tensor = inputs[i].isTensor();
    if (body.scalars[i].isTensor() != tensor) return false;
    if (tensor ? !body.geometry[i].Fits(inputs[i].toTensor())
               : !SameScalar(body.scalars[i], inputs[i]))
      return false;
  }
  return true;
}

Tensors Values(const std::vector<Operand>& operands, const LoadedModule& module,
               const Tensors& slots) {
  Tensors values;
  values.reserve(operands.size());
  for (const Operand& operand : operands) {
    values.push_back(ValueOf(operand, module.weights, slots));
    // A weight is a leaf of autograd.
    if (values.back().defined() && values.back().requires_grad())
      values.back() = values.back().tensor_data();
  }
  return values;
}

void Fill(RecordedRun& run, Tensors& gradients) {
  run.given.clear();
  run.buffers.clear();
  const size_t first = static_cast<size_t>(run.body->graph->inputs);
  for (size_t i = 0; i < gradients.size(); ++i)
    if (run.body->graph->arrives[i]) run.slots[first + i] = std::move(gradients[i]);
  gradients.clear();
}

}  // namespace

std::shared_ptr<RecordedBody> BodyFor(RecordedBodies& bodies,
                                      const std::vector<c10::IValue>& inputs,
                                      const std::vector<bool>& wanted) {
  if (!bodies.refusal.empty()) return nullptr;
  for (const c10::IValue& input : inputs)
    if (input.isTensor() && !input.toTensor().defined()) return nullptr;
  // It is usually the last one.
  for (auto body = bodies.bodies.rbegin(); body != bodies.bodies.rend(); ++body) {
    if (!Matches(**body, inputs, wanted)) continue;
    std::rotate(body.base() - 1, body.base(), bodies.bodies.end());
    return bodies.bodies.back();
  }
  auto body = std::make_shared<RecordedBody>();
  for (const c10::IValue& input : inputs) {
    body->geometry.push_back(input.isTensor() ? Geometry::Of(input.toTensor()) : Geometry());
    body->scalars.push_back(input.isTensor() ? c10::IValue(at::Tensor()) : input);
  }
  body->wanted = wanted;
  if (bodies.bodies.size() == RecordedBodies::kSignatures)
    bodies.bodies.erase(bodies.bodies.begin());
  bodies.bodies.push_back(body);
  return body;
}

std::vector<c10::IValue> ForwardRecorded(const LoadedModule& module,
                                         const std::shared_ptr<RecordedBody>& body,
                                         std::vector<c10::IValue> inputs, RecordedRun& run) {
  const RecordedGraph& graph = *body->graph;
  run.body = body;
  run.key = CurrentRandomKey();
  run.slots.resize(static_cast<size_t>(graph.slots));
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].isTensor()) run.slots[i] = inputs[i].toTensor();
  run.given = std::move(inputs);
  for (int weight : graph.written)
    run.buffers.push_back(module.weights[static_cast<size_t>(weight)].clone());
  for (int slot : graph.forward_release) run.slots[static_cast<size_t>(slot)].reset();
  Replay(graph.forward, true, module.weights, run.slots);
  std::vector<c10::IValue> outputs;
  outputs.reserve(graph.output.size());
  for (const Operand& operand : graph.output) {
    if (operand.kind == Operand::Kind::kConstant)
      outputs.push_back(operand.constant);
    else
      outputs.emplace_back(ValueOf(operand, module.weights, run.slots));
  }
  for (int slot : graph.forward_done) run.slots[static_cast<size_t>(slot)].reset();
  return outputs;
}

void Undo(const LoadedModule& module, const RecordedRun& run) {
  at::AutoDispatchBelowADInplaceOrView guard;
  for (size_t i = 0; i < run.buffers.size(); ++i)
    module.weights[static_cast<size_t>(run.body->graph->written[i])].copy_(run.buffers[i]);
}

bool GradientsFit(const RecordedBody& body, const Tensors& gradients) {
  const RecordedGraph& graph = *body.graph;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const bool arrives = gradients[i].defined() && graph.gives_gradient[i];
    if (arrives != graph.arrives[i]) return false;
    if (arrives && !graph.gradient[i].Fits(gradients[i])) return false;
  }
  return true;
}

std::pair<Tensors, Tensors> BackwardRecorded(const LoadedModule& module, RecordedRun run,
                                             Tensors gradients) {
  const RecordedGraph& graph = *run.body->graph;
  Fill(run, gradients);
  Replay(graph.backward, false, module.weights, run.slots);
  return {Values(graph.input_gradient, module, run.slots),
          Values(graph.weight_gradient, module, run.slots)};
}

Tensors InputGradientsRecorded(const LoadedModule& module, RecordedRun& run, Tensors gradients) {
  const RecordedGraph& graph = *run.body->graph;
  Fill(run, gradients);
  Replay(graph.input_grad, false, module.weights, run.slots);
  Tensors found = Values(graph.input_gradient, module, run.slots);
  for (int slot : graph.input_grad_done) run.slots[static_cast<size_t>(slot)].reset();
  return found;
}

Tensors WeightGradientsRecorded(const LoadedModule& module, RecordedRun run) {
  const RecordedGraph& graph = *run.body->graph;
  Replay(graph.weight_grad, false, module.weights, run.slots);
  return Values(graph.weight_gradient, module, run.slots);
}

}  // namespace pipewright
