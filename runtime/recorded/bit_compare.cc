#include "runtime/recorded/bit_compare.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>

#include "runtime/exec/clock.h"
#include "runtime/module/messages.h"
#include "runtime/module/module.h"
#include "runtime/module/saved_buffers.h"
#include "runtime/recorded/lists.h"
#include "runtime/recorded/replay.h"

namespace pipewright {

namespace {

// Later operations may depend on the layout in memory.
bool IsAlikeInMemory(const at::Tensor& a, const at::Tensor& b) {
  return a.strides() == b.strides() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg() &&
         a.unsafeGetTensorImpl()->is_wrapped_number() ==
             b.unsafeGetTensorImpl()->is_wrapped_number();
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  at::NoGradGuard no_grad;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

// Limit in bytes on buffers that forward writes, which are copied for each microbatch.
constexpr size_t kMostWritten = size_t{64} << 10;

constexpr c10::DispatchKeySet kNotPlain({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative,
                                         c10::DispatchKey::ZeroTensor});

void Shortest(double& shortest, double seconds) {
  if (shortest == 0 || seconds < shortest) shortest = seconds;
}

Tensors MadeUp(const RecordedGraph& graph) {
  at::Generator generator = at::detail::createCPUGenerator(1);
  Tensors gradients(graph.arrives.size());
  for (size_t i = 0; i < gradients.size(); ++i)
    if (graph.arrives[i]) {
      const Geometry& geometry = graph.gradient[i];
      gradients[i] = at::empty_strided(geometry.sizes, geometry.strides, geometry.type);
      gradients[i].normal_(0, 1, generator);
    }
  return gradients;
}

// Autograd's body.
struct Eager {
  std::vector<c10::IValue> inputs, outputs;
  Tensors leaves, roots, root_gradients, found;

  Eager(const LoadedModule& module, const std::vector<bool>& wanted,
        const std::vector<c10::IValue>& given)
      : inputs(given) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].isTensor()) inputs[i] = inputs[i].toTensor().tensor_data();
      if (wanted[i]) leaves.push_back(inputs[i].toTensor().set_requires_grad(true));
    }
    for (const at::Tensor& weight : module.weights)
      if (weight.requires_grad()) leaves.push_back(weight);
  }
  void Forward(const LoadedModule& module) {
    at::AutoGradMode mode(true);
    outputs = Run(module, inputs);
  }
  void Backward(const RecordedGraph& graph, const Tensors& gradients) {
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!graph.arrives[i]) continue;
      roots.push_back(outputs[i].toTensor());
      root_gradients.push_back(gradients[i]);
    }
    found = torch::autograd::grad(roots, leaves, root_gradients, false, false, true);
  }
};

// Runs autograd's body under `trace` and fills in the outputs and gradients of `graph`. Throws what
// the body throws, and if the trace refuses.
void Trace(const LoadedModule& module, const std::vector<bool>& wanted,
           const std::vector<c10::IValue>& inputs, const Tensors& gradients, RecordedGraph& graph,
           Recording& trace) {
  Eager eager(module, wanted, inputs);
  for (const c10::IValue& input : eager.inputs)
    trace.Input(input.isTensor() ? input.toTensor() : at::Tensor());
  for (const at::Tensor& gradient : gradients) trace.Input(gradient);
  for (size_t w = 0; w < module.weights.size(); ++w)
    trace.Weight(static_cast<int>(w), module.weights[w]);
  for (const c10::IValue& constant : module.code->constant_table())
    if (constant.isTensor()) trace.Constant(constant.toTensor());
  if (!trace.refusal().empty()) return;
  trace.Record(false, [&] { eager.Forward(module); });
  for (const c10::IValue& output : eager.outputs) {
    graph.gives_gradient.push_back(output.isTensor() && output.toTensor().requires_grad());
    if (output.isTensor()) {
      graph.output.push_back(trace.FindResult(output.toTensor()));
    } else {
      if (!HoldsNoTensor(output)) trace.Refuse("an output that is neither a tensor nor a number");
      graph.output.emplace_back();
      graph.output.back().constant = output;
    }
  }
  trace.Record(true, [&] { eager.Backward(graph, gradients); });
  size_t next = 0;
  auto operand_of_next = [&](bool is_wanted) {
    Operand operand;
    operand.constant = at::Tensor();
    if (is_wanted) operand = trace.FindResult(eager.found[next++]);
    return operand;
  };
  for (bool is_wanted : wanted) graph.input_gradient.push_back(operand_of_next(is_wanted));
  for (const at::Tensor& weight : module.weights)
    graph.weight_gradient.push_back(operand_of_next(weight.requires_grad()));
}

// Returns the first instruction of `list` that returns or writes other bits than its call in
// `trace`.
std::string FirstOtherOf(const InstructionList& list, bool forward, const Recording& trace,
                         const std::vector<at::Tensor>& weights, Tensors& slots) {
  for (const Instruction& one : list) {
    Tensors written;
    const auto& arguments = one.op.schema().arguments();
    for (size_t i = 0; one.kind == Instruction::Kind::kCall && i < arguments.size(); ++i) {
      if (!arguments[i].alias_info() || !arguments[i].alias_info()->isWrite()) continue;
      const Operand& operand = one.operands[i];
      for (const Operand& item : operand.kind == Operand::Kind::kList ? operand.items
                                                                      : std::vector{operand})
        if (at::Tensor tensor = ValueOf(item, weights, slots); tensor.defined())
          written.push_back(tensor);
    }
    Replay({one}, forward, weights, slots);
    if (one.number < 0) continue;
    if (one.number >= static_cast<int>(trace.results.size())) return one.op.schema().name();
    const Recording::CallResult& was = trace.results[static_cast<size_t>(one.number)];
    Tensors now;
    for (int slot : one.results)
      now.push_back(slot < 0 ? at::Tensor() : slots[static_cast<size_t>(slot)]);
    now.insert(now.end(), written.begin(), written.end());
    for (size_t k = 0; k < now.size(); ++k)
      if (now[k].defined() && (k >= was.tensors.size() || !was.tensors[k].defined() ||
                               !SameBits(now[k], was.tensors[k])))
        return one.op.schema().name() + (was.place.empty() ? "" : " (" + was.place + ")") +
               (forward ? ", forward" : ", backward");
  }
  return "";
}

}  // namespace

std::string Difference(const Tensors& a, const Tensors& b, const std::string& what,
                       bool in_memory) {
  if (a.size() != b.size()) return "other " + what;
  for (size_t i = 0; i < a.size(); ++i)
    if (!SameBits(a[i], b[i]) || (in_memory && a[i].defined() && !IsAlikeInMemory(a[i], b[i])))
      return "other bits in " + what + " " + std::to_string(i);
  return "";
}

Tensors TensorsAmong(const std::vector<c10::IValue>& values) {
  Tensors found;
  for (const c10::IValue& value : values)
    if (value.isTensor()) found.push_back(value.toTensor());
  return found;
}

std::string Record(const LoadedModule& module, RecordedBody& body,
                   const std::vector<c10::IValue>& inputs) {
  RecordedGraph& graph = *body.graph;
  for (const Geometry& geometry : graph.gradient)
    if (geometry.number || geometry.keys.has_any(kNotPlain))
      return "gradients that are not plain memory";
    else if (HasRepeatedElements(
                 at::empty_strided(geometry.sizes, geometry.strides, at::device(at::kMeta))))
      return "gradients whose elements share memory";
  SavedBuffers buffers(module);
  Recording trace;
  graph.inputs = static_cast<int>(inputs.size());
  try {
    Trace(module, body.wanted, inputs, MadeUp(graph), graph, trace);
  } catch (const std::exception&) {
    return trace.refusal().empty() ? "it fails" : trace.refusal();
  }
  if (!trace.refusal().empty()) return trace.refusal();
  graph.written = trace.written();
  size_t written = 0;
  for (int weight : graph.written) written += module.weights[static_cast<size_t>(weight)].nbytes();
  if (written > kMostWritten) return "large buffers that forward writes";
  MakeLists(trace, graph);
  for (InstructionList* list :
       {&graph.forward, &graph.backward, &graph.input_grad, &graph.weight_grad})
    Specialize(*list);
  return "";
}

std::string CompareBodies(const LoadedModule& module, const std::shared_ptr<RecordedBody>& body,
                          const std::vector<c10::IValue>& inputs) {
  SavedBuffers buffers(module);
  const RecordedGraph& graph = *body->graph;
  const Tensors gradients = MadeUp(graph);
  try {
    Eager eager(module, body->wanted, inputs);
    double start = Now();
    eager.Forward(module);
    eager.Backward(graph, gradients);
    Shortest(body->eager_seconds, Now() - start);
    const Tensors after = buffers.PutBack();
    Tensors of_inputs, of_weights;
    size_t next = 0;
    for (bool wanted : body->wanted)
      of_inputs.push_back(wanted ? eager.found[next++] : at::Tensor());
    for (const at::Tensor& weight : module.weights)
      of_weights.push_back(weight.requires_grad() ? eager.found[next++] : at::Tensor());
    for (bool split : {false, true}) {
      RecordedRun run;
      start = Now();
      std::vector<c10::IValue> outputs = ForwardRecorded(module, body, inputs, run);
      double seconds = Now() - start;
      std::string other = Difference(TensorsAmong(outputs), TensorsAmong(eager.outputs), "output");
      for (size_t i = 0; i < outputs.size() && other.empty(); ++i)
        if (!outputs[i].isTensor() && outputs[i] != eager.outputs[i])
          other = "another number in output " + std::to_string(i);
      if (other.empty()) other = Difference(buffers.PutBack(), after, "buffer");
      if (!other.empty()) return other;
      Tensors inputs_found, weights_found;
      if (split) {
        inputs_found = InputGradientsRecorded(module, run, gradients);
        weights_found = WeightGradientsRecorded(module, std::move(run));
      } else {
        start = Now();
        std::tie(inputs_found, weights_found) = BackwardRecorded(module, std::move(run), gradients);
        Shortest(body->list_seconds, seconds + Now() - start);
      }
      other = Difference(inputs_found, of_inputs, "gradient of input");
      if (other.empty()) other = Difference(weights_found, of_weights, "gradient of weight");
      if (!other.empty()) return other + (split ? ", I and W" : ", B");
    }
  } catch (const std::exception& e) {
    return std::string("it fails: ") + e.what();
  }
  return "";
}

std::string FirstOther(const LoadedModule& module, const RecordedBody& body,
                       const std::vector<c10::IValue>& inputs, const Tensors& gradients) {
  SavedBuffers buffers(module);
  const RecordedGraph& graph = *body.graph;
  RecordedGraph again;
  again.arrives = graph.arrives;
  const Tensors arriving = gradients.empty() ? MadeUp(graph) : gradients;
  Recording trace;
  trace.keeps_results = true;
  Trace(module, body.wanted, inputs, arriving, again, trace);
  buffers.PutBack();
  Tensors slots(static_cast<size_t>(graph.slots));
  for (size_t i = 0; i < inputs.size(); ++i)
    if (inputs[i].isTensor()) slots[i] = inputs[i].toTensor();
  for (size_t i = 0; i < arriving.size(); ++i)
    if (graph.arrives[i]) slots[inputs.size() + i] = arriving[i];
  std::string other = FirstOtherOf(graph.forward, true, trace, module.weights, slots);
  if (other.empty()) other = FirstOtherOf(graph.backward, false, trace, module.weights, slots);
  return other;
}

bool IsReproducible(const LoadedModule& module, const RecordedBody& body,
                    const std::vector<c10::IValue>& inputs, const Tensors& gradients) {
  constexpr int kRuns = 8;
  const RandomKey key = CurrentRandomKey();
  Tensors first;
  for (int run = 0; run < kRuns; ++run) {
    SavedBuffers buffers(module);
    SetRandomKey(key);
    Eager eager(module, body.wanted, inputs);
    eager.Forward(module);
    eager.Backward(*body.graph, gradients.empty() ? MadeUp(*body.graph) : gradients);
    Tensors found = TensorsAmong(eager.outputs);
    found.insert(found.end(), eager.found.begin(), eager.found.end());
    if (run == 0)
      for (const at::Tensor& tensor : found)
        first.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
    else if (!Difference(found, first, "result", /*in_memory=*/false).empty())
      return false;
  }
  return true;
}

}  // namespace pipewright
