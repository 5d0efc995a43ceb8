#include "runtime/recorded/compare.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/autograd.h>

#include <cstring>

#include "runtime/exec/clock.h"
#include "runtime/module.h"
#include "runtime/recorded/lists.h"
#include "runtime/recorded/replay.h"
#include "runtime/saved_buffers.h"

namespace pipewright {

namespace {

// The generator of those who name none, as it was.
class SavedGenerator {
 public:
  ~SavedGenerator() { generator_.set_state(state_); }

 private:
  at::Generator generator_ = at::globalContext().defaultGenerator(at::kCPU);
  at::Tensor state_ = generator_.get_state();
};

bool SameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  // What comes after it may depend on how it lies in memory.
  if (a.sizes() != b.sizes() || a.strides() != b.strides() || a.scalar_type() != b.scalar_type() ||
      a.is_conj() != b.is_conj() || a.is_neg() != b.is_neg() ||
      a.unsafeGetTensorImpl()->is_wrapped_number() != b.unsafeGetTensorImpl()->is_wrapped_number())
    return false;
  at::NoGradGuard no_grad;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::string Difference(const Tensors& a, const Tensors& b, const std::string& what) {
  if (a.size() != b.size()) return "other " + what;
  for (size_t i = 0; i < a.size(); ++i)
    if (!SameBits(a[i], b[i])) return "other bits in " + what + " " + std::to_string(i);
  return "";
}

// They are copied for each microbatch.
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

}  // namespace

std::string Record(const LoadedModule& module, RecordedBody& body,
                   const std::vector<c10::IValue>& inputs) {
  RecordedGraph& graph = *body.graph;
  for (const Geometry& geometry : graph.gradient)
    if (geometry.number || geometry.keys.has_any(kNotPlain))
      return "gradients that are not plain memory";
    else if (!at::empty_strided(geometry.sizes, geometry.strides, at::device(at::kMeta))
                  .is_non_overlapping_and_dense())
      return "gradients whose elements share memory";
  SavedBuffers buffers(module);
  SavedGenerator generator;
  Recording trace;
  Eager eager(module, body.wanted, inputs);
  const Tensors gradients = MadeUp(graph);
  for (const c10::IValue& input : eager.inputs)
    trace.Input(input.isTensor() ? input.toTensor() : at::Tensor());
  for (const at::Tensor& gradient : gradients) trace.Input(gradient);
  for (size_t w = 0; w < module.weights.size(); ++w)
    trace.Weight(static_cast<int>(w), module.weights[w]);
  for (const c10::IValue& constant : module.code->constant_table())
    if (constant.isTensor()) trace.Constant(constant.toTensor());
  graph.inputs = static_cast<int>(inputs.size());
  try {
    trace.Record(false, [&] { eager.Forward(module); });
    if (!trace.refusal().empty()) return trace.refusal();
    for (const c10::IValue& output : eager.outputs) {
      graph.gives_gradient.push_back(output.isTensor() && output.toTensor().requires_grad());
      if (output.isTensor()) {
        graph.output.push_back(trace.Find(output.toTensor()));
      } else {
        graph.output.emplace_back();
        graph.output.back().constant = output;
      }
    }
    trace.Record(true, [&] { eager.Backward(graph, gradients); });
  } catch (const std::exception&) {
    return "it fails";
  }
  size_t next = 0;
  auto operand_of_next = [&](bool wanted) {
    Operand operand;
    operand.constant = at::Tensor();
    if (wanted) operand = trace.Find(eager.found[next++]);
    return operand;
  };
  for (bool wanted : body.wanted) graph.input_gradient.push_back(operand_of_next(wanted));
  for (const at::Tensor& weight : module.weights)
    graph.weight_gradient.push_back(operand_of_next(weight.requires_grad()));
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

std::string Compare(const LoadedModule& module, const std::shared_ptr<RecordedBody>& body,
                    const std::vector<c10::IValue>& inputs) {
  SavedBuffers buffers(module);
  SavedGenerator generator;
  const RecordedGraph& graph = *body->graph;
  const Tensors gradients = MadeUp(graph);
  auto tensors = [](const std::vector<c10::IValue>& values) {
    Tensors found;
    for (const c10::IValue& value : values)
      if (value.isTensor()) found.push_back(value.toTensor());
    return found;
  };
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
      std::string other = Difference(tensors(outputs), tensors(eager.outputs), "output");
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

}  // namespace pipewright
