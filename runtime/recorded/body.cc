#include "runtime/recorded/body.h"

#include <ATen/ATen.h>

#include <cstdio>

#include "runtime/module.h"
#include "runtime/recorded/compare.h"
#include "runtime/recorded/replay.h"

namespace pipewright {

namespace {

// Above this mean length of an operation, in seconds, autograd's share is below what can be
// measured.
constexpr double kLongOperation = 60e-6;
constexpr int kWatched = 4;  // forwards, of which the shortest counts
constexpr int kChecks = 2;

bool SameScalar(const c10::IValue& a, const c10::IValue& b) {
  if (a.tagKind() != b.tagKind()) return false;
  if (a.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble()) return a.toDouble() == b.toDouble();
  if (a.isBool()) return a.toBool() == b.toBool();
  return a.isNone();
}

bool Matches(const RecordedBody& body, const std::vector<c10::IValue>& inputs,
             const std::vector<bool>& wanted) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool tensor = inputs[i].isTensor();
    if (body.scalars[i].isTensor() != tensor) return false;
    if (tensor ? !body.geometry[i].Fits(inputs[i].toTensor())
               : !SameScalar(body.scalars[i], inputs[i]))
      return false;
  }
  return body.wanted == wanted;
}

Tensors Values(const std::vector<Operand>& operands, const LoadedModule& module,
               const Tensors& slots) {
  Tensors values;
  values.reserve(operands.size());
  for (const Operand& operand : operands) values.push_back(ValueOf(operand, module.weights, slots));
  return values;
}

void Fill(RecordedRun& run, Tensors& gradients) {
  run.given.clear();
  const size_t first = static_cast<size_t>(run.body->graph->inputs);
  for (size_t i = 0; i < gradients.size(); ++i)
    if (run.body->graph->arrives[i]) run.slots[first + i] = std::move(gradients[i]);
  gradients.clear();
}

}  // namespace

std::shared_ptr<RecordedBody> BodyFor(RecordedBodies& bodies,
                                      const std::vector<c10::IValue>& inputs,
                                      const std::vector<bool>& wanted) {
  for (const auto& body : bodies.bodies)
    if (Matches(*body, inputs, wanted)) return body;
  for (const c10::IValue& input : inputs)
    if (input.isTensor() && !input.toTensor().defined()) return nullptr;
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

void NoteForward(RecordedBody& body, double seconds) {
  if (body.forwards++ == 0 || seconds < body.forward_seconds) body.forward_seconds = seconds;
}

void NoteGradients(RecordedBody& body, const Tensors& outputs, const Tensors& gradients) {
  if (body.gradients_known || body.state != RecordedBody::State::kWatched) return;
  body.graph = std::make_unique<RecordedGraph>();
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool arrives = outputs[i].defined() && gradients[i].defined();
    body.graph->arrives.push_back(arrives);
    body.graph->gradient.push_back(arrives ? Geometry::Of(gradients[i]) : Geometry());
    body.gradients_known = body.gradients_known || arrives;
  }
}

void TellBody(int module, const std::string& refusal) {
  const std::string text = "pipewright-run: module " + std::to_string(module) +
                           (refusal.empty() ? " runs as lists of operations\n"
                                            : " stays with autograd: " + refusal + "\n");
  std::fputs(text.c_str(), stderr);
}

bool IsReady(const LoadedModule& module, const std::shared_ptr<RecordedBody>& watched,
             const std::vector<c10::IValue>& inputs) {
  using State = RecordedBody::State;
  RecordedBody& body = *watched;
  if (body.state == State::kUsed) return true;
  if (body.state == State::kRefused || !body.gradients_known || body.forwards < kWatched)
    return false;
  if (body.state == State::kWatched) {
    if (body.forward_seconds > kLongOperation * module.recorded->nodes)
      body.refusal = "its operations are long";
    else
      body.refusal = Record(module, body, inputs);
    body.state = body.refusal.empty() ? State::kChecked : State::kRefused;
  }
  if (body.state == State::kChecked) {
    body.refusal = Compare(module, watched, inputs);
    if (!body.refusal.empty())
      body.state = State::kRefused;
    else if (++body.checks == kChecks)
      body.state = State::kUsed;
  }
  if (body.state == State::kRefused) body.graph.reset();
  // Others than the first signature are not told.
  if (body.state != State::kChecked && module.recorded->bodies.front() == watched)
    TellBody(module.index, body.refusal);
  return body.state == State::kUsed;
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
  for (int slot : graph.forward_release) run.slots[static_cast<size_t>(slot)].reset();
  Replay(graph.forward, module.weights, run.slots);
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
  Replay(graph.backward, module.weights, run.slots);
  return {Values(graph.input_gradient, module, run.slots),
          Values(graph.weight_gradient, module, run.slots)};
}

Tensors InputGradientsRecorded(const LoadedModule& module, RecordedRun& run, Tensors gradients) {
  const RecordedGraph& graph = *run.body->graph;
  Fill(run, gradients);
  Replay(graph.input_grad, module.weights, run.slots);
  Tensors found = Values(graph.input_gradient, module, run.slots);
  for (int slot : graph.input_grad_done) run.slots[static_cast<size_t>(slot)].reset();
  return found;
}

Tensors WeightGradientsRecorded(const LoadedModule& module, RecordedRun run) {
  const RecordedGraph& graph = *run.body->graph;
  Replay(graph.weight_grad, module.weights, run.slots);
  return Values(graph.weight_gradient, module, run.slots);
}

}  // namespace pipewright
