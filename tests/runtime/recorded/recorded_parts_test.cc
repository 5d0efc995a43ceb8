// Records operations by hand, makes lists of them and runs these on other values.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "runtime/recorded/body.h"
#include "runtime/recorded/lists.h"
#include "runtime/recorded/recording.h"
#include "runtime/recorded/replay.h"
#include "tests/runtime/recorded_cases.h"

namespace pipewright {
namespace {

std::vector<std::string> Names(const InstructionList& list) {
  std::vector<std::string> names;
  for (const Instruction& one : list)
    names.push_back(one.kind == Instruction::Kind::kView ? "view" : one.op.schema().name());
  return names;
}

// y = relu(x w) + c, of which the view and the logarithm are of no use.
TEST(Recording, ReplaysOnOtherInputsAndWeights) {
  at::manual_seed(1);
  const at::Tensor x = at::randn({2, 3}), w = at::randn({3, 4}), c = at::randn({4});
  Recording trace;
  const Operand input = trace.Input(x);
  trace.Weight(0, w);
  trace.Constant(c);
  at::Tensor y;
  trace.Record(false, [&] {
    y = at::relu(at::mm(x, w));
    at::log(y.t());
    y = at::add(y, c);
  });
  RecordedGraph graph;
  graph.inputs = 1;
  graph.output = {trace.FindResult(y)};
  ASSERT_EQ(trace.refusal(), "");
  EXPECT_EQ(input.index, 0);
  EXPECT_TRUE(trace.backward.empty() && trace.written().empty());
  MakeLists(trace, graph);
  EXPECT_EQ(Names(graph.forward),
            (std::vector<std::string>{"aten::mm", "aten::relu", "aten::add"}));
  for (bool specialized : {false, true}) {
    if (specialized) {
      Specialize(graph.forward);
      EXPECT_EQ(graph.forward[0].kind, Instruction::Kind::kBinary);
      EXPECT_EQ(graph.forward[1].kind, Instruction::Kind::kUnary);
      EXPECT_EQ(graph.forward[2].kind, Instruction::Kind::kScaledSum);
    }
    const at::Tensor other = at::randn({2, 3}), weight = at::randn({3, 4});
    Tensors slots(static_cast<size_t>(graph.slots));
    slots[0] = other;
    Replay(graph.forward, true, {weight}, slots);
    EXPECT_TRUE(at::equal(ValueOf(graph.output[0], {weight}, slots),
                          at::add(at::relu(at::mm(other, weight)), c)));
    // Only the output is left.
    int held = 0;
    for (const at::Tensor& slot : slots) held += slot.defined();
    EXPECT_EQ(held, 1);
  }
  EXPECT_FALSE(ValueOf(Operand(), {}, {}).defined());
}

TEST(Recording, OfBackwardIsSplitIntoTheTwoHalves) {
  const at::Tensor x = at::randn({2, 3}), g = at::randn({2, 4}), w = at::randn({3, 4});
  Recording trace;
  trace.Input(x);
  trace.Input(g);
  trace.Weight(0, w);
  at::Tensor y, for_x, for_w;
  trace.Record(false, [&] { y = at::mm(x, w); });
  trace.Record(true, [&] {
    const at::Tensor both = at::neg(g);  // needed by both halves
    for_x = at::mm(both, w.t());
    for_w = at::mm(x.t(), both);
  });
  RecordedGraph graph;
  graph.inputs = 1;
  graph.output = {trace.FindResult(y)};
  graph.input_gradient = {trace.FindResult(for_x)};
  graph.weight_gradient = {trace.FindResult(for_w)};
  ASSERT_EQ(trace.refusal(), "");
  MakeLists(trace, graph);
  auto count = [](const InstructionList& list, const std::string& name) {
    const std::vector<std::string> names = Names(list);
    return std::count(names.begin(), names.end(), name);
  };
  EXPECT_EQ(count(graph.backward, "aten::mm"), 2);
  EXPECT_EQ(count(graph.input_grad, "aten::mm"), 1);
  EXPECT_EQ(count(graph.weight_grad, "aten::mm"), 1);
  EXPECT_EQ(count(graph.input_grad, "aten::neg") + count(graph.weight_grad, "aten::neg"), 1);
  Tensors slots(static_cast<size_t>(graph.slots));
  slots[0] = x;
  Replay(graph.forward, true, {w}, slots);
  EXPECT_TRUE(slots[0].defined());  // W reads it
  const at::Tensor gradient = at::randn({2, 4});
  slots[1] = gradient;
  Replay(graph.input_grad, false, {w}, slots);
  EXPECT_TRUE(at::allclose(ValueOf(graph.input_gradient[0], {w}, slots), -at::mm(gradient, w.t())));
  Replay(graph.weight_grad, false, {w}, slots);
  EXPECT_TRUE(
      at::allclose(ValueOf(graph.weight_gradient[0], {w}, slots), -at::mm(x.t(), gradient)));
}

TEST(Recording, RefusesWhatOtherValuesWouldChange) {
  auto refusal = [](const std::function<at::Tensor(const at::Tensor&)>& code) {
    const at::Tensor x = at::arange(4, at::kFloat).add(1);
    Recording trace;
    trace.Input(x);
    at::Tensor y;
    trace.Record(false, [&] { y = code(x); });
    trace.FindResult(y);
    return trace.refusal();
  };
  EXPECT_EQ(refusal([](const at::Tensor& x) { return x.exp().view({2, 2}).sum(0); }), "");
  const at::Tensor foreign = at::ones({4});
  EXPECT_EQ(refusal([&](const at::Tensor& x) { return x + foreign; }),
            "a tensor that no recorded operation made");
  EXPECT_EQ(refusal([](const at::Tensor& x) { return x.nonzero(); }),
            "sizes that depend on the data, aten::nonzero");
  EXPECT_EQ(refusal([](const at::Tensor& x) { return x * x[0].item<double>(); }),
            "a number that is computed, aten::_local_scalar_dense");
  // Random numbers are refused before the generator moves on.
  const auto draw = [](const at::Tensor& x) { return x.bernoulli(); };
  const uint64_t seed = 5;
  at::manual_seed(seed);
  EXPECT_THROW(refusal(draw), std::runtime_error);
  const at::Tensor next = at::rand({3});
  at::manual_seed(seed);
  EXPECT_TRUE(at::equal(at::rand({3}), next));
  EXPECT_EQ(refusal([](const at::Tensor& x) { return x.clone().add_(x).add(x.add_(1)); }),
            "forward that writes to what it is given");
  EXPECT_EQ(refusal([](const at::Tensor& x) {
              at::Tensor y = at::empty_like(x);
              y.data_ptr<float>()[0] = 1;
              return y;
            }),
            "memory that something else has written to");
  Recording shared;
  shared.Input(foreign);
  shared.Input(foreign.slice(0, 1));
  EXPECT_EQ(shared.refusal(), "inputs that share memory");
  Recording thrown;
  EXPECT_THROW(thrown.Record(false, [] { throw std::runtime_error("x"); }), std::runtime_error);
  at::ones({2});  // is not recorded any more
  EXPECT_TRUE(thrown.forward.empty());
  EXPECT_TRUE(HoldsNoTensor(c10::IValue(std::vector<int64_t>{1})));
  EXPECT_FALSE(HoldsNoTensor(c10::IValue(foreign)));
}

TEST(RecordedBodies, OneForEachSignature) {
  RecordedBodies bodies;
  const at::Tensor a = at::ones({2, 3});
  const auto first = BodyFor(bodies, {a, 5}, {true, false});
  EXPECT_EQ(BodyFor(bodies, {at::zeros({2, 3}), 5}, {true, false}), first);
  EXPECT_NE(BodyFor(bodies, {a, 6}, {true, false}), first);
  EXPECT_NE(BodyFor(bodies, {a, 5}, {false, false}), first);
  EXPECT_NE(BodyFor(bodies, {a.t().contiguous().t(), 5}, {true, false}), first);  // other strides
  EXPECT_NE(BodyFor(bodies, {a.to(at::kDouble), 5}, {true, false}), first);
  EXPECT_EQ(bodies.bodies.size(), 5u);
  EXPECT_EQ(BodyFor(bodies, {at::Tensor(), 5}, {true, false}), nullptr);
  // The least recently used ones are forgotten.
  for (int64_t n = 10; n < 10 + static_cast<int64_t>(RecordedBodies::kSignatures) - 1; ++n) {
    BodyFor(bodies, {at::ones({n}), 5}, {true, false});
    BodyFor(bodies, {a, 5}, {true, false});
  }
  EXPECT_EQ(bodies.bodies.size(), RecordedBodies::kSignatures);
  EXPECT_EQ(BodyFor(bodies, {a, 5}, {true, false}), first);
  bodies.refusal = "no";
  EXPECT_EQ(BodyFor(bodies, {a, 5}, {true, false}), nullptr);
}

// The lists of a module give autograd's gradients, and what F wrote can be undone.
TEST(RecordedBody, RunsForwardAndBothHalvesAndUndoesBuffers) {
  const Case c = {"a sum of inputs",
                  "def forward(self, x):\n"
                  "  self.w1.mul_(0.5)\n"
                  "  self.w1.add_(x.detach().sum(0))\n"
                  "  return torch.tanh(x * self.w0)\n",
                  {Trained({3}), at::zeros({3})},
                  Batches({{4, 3}})};
  const LoadedModule module = Make(c, true);
  for (size_t i = 0; i < 6; ++i) RunOne(module, c.inputs[i], i, false);
  const std::shared_ptr<RecordedBody> body = module.recorded->bodies.at(0);
  ASSERT_EQ(body->state, RecordedBody::State::kUsed) << body->refusal;
  EXPECT_EQ(body->graph->written, std::vector<int>{1});
  at::Tensor x = c.inputs[7][0].clone().requires_grad_(true);
  at::Tensor weight = module.weights[0].detach().clone().requires_grad_(true);
  const at::Tensor before = module.weights[1].clone(), after = before * 0.5 + x.detach().sum(0);
  const at::Tensor y = at::tanh(x * weight), gradient = at::randn({4, 3});
  y.backward(gradient);
  EXPECT_TRUE(GradientsFit(*body, {gradient}));
  EXPECT_FALSE(GradientsFit(*body, {at::Tensor()}));
  EXPECT_FALSE(GradientsFit(*body, {gradient.t().contiguous().t()}));
  for (bool halves : {false, true}) {
    RecordedRun run;
    const auto outputs = ForwardRecorded(module, body, {x.detach()}, run);
    EXPECT_TRUE(at::equal(outputs[0].toTensor(), y));
    EXPECT_TRUE(at::equal(module.weights[1], after));
    Undo(module, run);
    EXPECT_TRUE(at::equal(module.weights[1], before));
    Tensors for_inputs, for_weights;
    if (halves) {
      for_inputs = InputGradientsRecorded(module, run, {gradient});
      for_weights = WeightGradientsRecorded(module, std::move(run));
    } else {
      std::tie(for_inputs, for_weights) = BackwardRecorded(module, std::move(run), {gradient});
    }
    EXPECT_TRUE(at::equal(for_inputs[0], x.grad()));
    EXPECT_TRUE(at::equal(for_weights[0], weight.grad()));
  }
}

}  // namespace
}  // namespace pipewright
