#include "tests/runtime/recorded_cases.h"

#include "runtime/measure/memory_meter.h"
#include "tests/runtime/count_kernels.h"

namespace pipewright {

TEST(RecordedBody, HasTheBitsOfAutograds) {
  for (const Case& c : Cases()) {
    LoadedModule eager = Make(c, false), lists = Make(c, true);
    for (size_t i = 0; i < c.inputs.size(); ++i) {
      const std::string what = c.name + ", microbatch " + std::to_string(i);
      Result a = RunOne(eager, c.inputs[i], i, i % 2), b = RunOne(lists, c.inputs[i], i, i % 2);
      ExpectSame(a.outputs, b.outputs, what + ", output");
      ExpectSame(a.inputs, b.inputs, what + ", gradient of input");
      ExpectSame(a.weights, b.weights, what + ", gradient of weight");
      ExpectSame(a.buffers, b.buffers, what + ", buffer");
    }
    ASSERT_EQ(lists.recorded->bodies.size(), 1u) << c.name;
    const RecordedBody& body = *lists.recorded->bodies[0];
    EXPECT_EQ(body.state == RecordedBody::State::kUsed, c.refusal.empty())
        << c.name << ": " << body.refusal;
    EXPECT_NE((body.refusal + ".").find(c.refusal), std::string::npos) << body.refusal;
  }
}

// I requests gradients of inputs only, W those of weights, and each kernel runs once.
TEST(RecordedBody, RunsEveryKernelOfBackwardOnce) {
  size_t all_norms = 0;
  for (const Case& c : Cases()) {
    if (!c.refusal.empty()) continue;
    LoadedModule lists = Make(c, true);
    for (size_t i = 0; i < 6; ++i) RunOne(lists, c.inputs[i], i, false);
    const RecordedBody& body = *lists.recorded->bodies[0];
    ASSERT_EQ(body.state, RecordedBody::State::kUsed) << c.name << ": " << body.refusal;
    size_t calls[3] = {};
    const InstructionList* of[3] = {&body.graph->backward, &body.graph->input_grad,
                                    &body.graph->weight_grad};
    size_t masked = 0;
    for (int k = 0; k < 3; ++k)
      for (const Instruction& one : *of[k]) {
        calls[k] += one.kind != Instruction::Kind::kView;
        for (const Operand& operand : one.operands)
          masked += k == 0 && operand.constant.isBoolList();
      }
    EXPECT_GE(calls[0] + masked, calls[1] + calls[2]) << c.name;
    EXPECT_LE(calls[0], calls[1] + calls[2]) << c.name;
    // The sums of a normalization are not computed twice.
    size_t norms[3] = {};
    for (int k = 0; k < 3; ++k)
      for (const Instruction& one : *of[k])
        norms[k] += one.kind == Instruction::Kind::kCall &&
                    one.op.schema().name().ends_with("norm_backward");
    EXPECT_EQ(norms[0], norms[1] + norms[2]) << c.name;
    all_norms += norms[1];
  }
  EXPECT_GE(all_norms, 4u);
}

TEST(RecordedBody, KeepsNoMoreThanAutograd) {
  for (const Case& c : Cases()) {
    if (!c.refusal.empty()) continue;
    int64_t held[2][3];
    for (bool with : {false, true}) {
      LoadedModule module = Make(c, with);
      for (size_t i = 0; i < 6; ++i) RunOne(module, c.inputs[i], i, true);
      MemoryMeter meter;
      SetRandomKey({});
      Kept kept;
      std::vector<c10::IValue> given(c.inputs[5].begin(), c.inputs[5].end());
      std::vector<bool> wanted;
      for (const at::Tensor& input : c.inputs[5]) wanted.push_back(input.is_floating_point());
      ForwardIsland(module, given, wanted, &kept);
      held[with][0] = meter.live();
      Tensors gradients;
      for (const at::Tensor& output : kept.outputs)
        gradients.push_back(output.defined() ? at::ones(output.sizes()) : at::Tensor());
      meter.ResetPeak();
      WeightTail tail;
      InputGradientsOf(module, std::move(kept), std::move(gradients), tail);
      held[with][1] = meter.live();
      held[with][2] = meter.peak();
    }
    int64_t buffers = 0;  // buffers that forward writes are copied
    for (const at::Tensor& weight : c.weights)
      if (!weight.requires_grad()) buffers += static_cast<int64_t>(weight.nbytes());
    for (int k = 0; k < 3; ++k)
      EXPECT_LE(held[1][k], held[0][k] + (k < 2 ? buffers : 0)) << c.name << ", " << k;
  }
}

// The gradients that the lists were recorded for do not arrive: the module runs again with
// autograd.
TEST(RecordedBody, OtherGradientsThanRecorded) {
  const Case c = Cases()[3];
  LoadedModule eager = Make(c, false), lists = Make(c, true);
  for (size_t i = 0; i < 6; ++i) RunOne(lists, c.inputs[i], i, false);
  ASSERT_EQ(lists.recorded->bodies[0]->state, RecordedBody::State::kUsed);
  ModuleGradients found[2];
  for (bool with : {false, true}) {
    Kept kept;
    std::vector<c10::IValue> given(c.inputs[4].begin(), c.inputs[4].end());
    ForwardIsland(with ? lists : eager, given, {true, true}, &kept);
    Tensors gradients = {at::ones({3, 4}), {}, {}, {}};
    found[with] = BackwardIsland(with ? lists : eager, std::move(kept), std::move(gradients));
  }
  ExpectSame(found[0].inputs, found[1].inputs, "input");
  ExpectSame(found[0].weights, found[1].weights, "weight");
  EXPECT_FALSE(found[1].inputs[1].defined());
  EXPECT_EQ(lists.recorded->bodies[0]->state, RecordedBody::State::kRefused);
}

// Before the rerun, buffers are as they were before the forward; afterwards, as if nothing had been
// repeated.
TEST(RecordedBody, OtherGradientsWhereForwardWrites) {
  Case c{"averages",
         "def forward(self, x, z):\n  m = self.w1.mul_(0.5).add_(x.detach().mean(0))\n"
         "  y = torch.tanh((x - m) * self.w0)\n  return (y, z * self.w0)\n",
         {Trained({4}), at::zeros({4})},
         Batches({{3, 4}, {3, 4}})};
  LoadedModule eager = Make(c, false), lists = Make(c, true);
  for (size_t i = 0; i < 6; ++i) {
    RunOne(eager, c.inputs[i], i, false);
    RunOne(lists, c.inputs[i], i, false);
  }
  ASSERT_EQ(lists.recorded->bodies[0]->state, RecordedBody::State::kUsed);
  ModuleGradients found[2];
  Tensors buffers;
  for (bool with : {false, true}) {
    const LoadedModule& module = with ? lists : eager;
    Kept first, second;
    std::vector<c10::IValue> a(c.inputs[6].begin(), c.inputs[6].end()),
        b(c.inputs[7].begin(), c.inputs[7].end());
    ForwardIsland(module, a, {true, true}, &first);
    ForwardIsland(module, b, {true, true}, &second);
    found[with] = BackwardIsland(module, std::move(first), {at::ones({3, 4}), at::Tensor()});
    buffers.push_back(module.weights[1]);
  }
  ExpectSame(found[0].inputs, found[1].inputs, "input");
  ExpectSame(found[0].weights, found[1].weights, "weight");
  EXPECT_TRUE(at::equal(buffers[0], buffers[1]));
  EXPECT_EQ(lists.recorded->bodies[0]->state, RecordedBody::State::kRefused);
}

// A buffer that forward writes and backward reads: an error of autograd does not go unnoticed.
TEST(RecordedBody, BackwardThatReadsWhatForwardWrites) {
  Case c{"written and saved",
         "def forward(self, x):\n  m = self.w1.add_(1.)\n  return x * self.w0 * m\n",
         {Trained({4}), at::zeros({4})},
         Batches({{3, 4}})};
  LoadedModule lists = Make(c, true);
  for (size_t i = 0; i < 6; ++i) RunOne(lists, c.inputs[i], i, false);
  const RecordedBody& body = *lists.recorded->bodies[0];
  EXPECT_EQ(body.state, RecordedBody::State::kRefused);
  EXPECT_NE(body.refusal.find("a buffer which forward writes"), std::string::npos) << body.refusal;
}

// Without a request for lists, they are recorded at the start of a step, when nothing is in flight.
TEST(RecordedBody, IsRecordedWhereMemoryIsFree) {
  const Case c = Cases()[0];
  LoadedModule lists = Make(c, true);
  lists.recorded->now = lists.recorded->always = false;
  lists.recorded->nodes = 1000000;  // never too long
  auto forward = [&](uint64_t step, uint64_t microbatch) {
    SetRandomKey({7, step, microbatch});
    Kept kept;
    ForwardIsland(lists, {c.inputs[microbatch][0]}, {true}, &kept);
    return kept;
  };
  auto backward = [&](Kept kept) { BackwardIsland(lists, std::move(kept), {at::ones({6, 4})}); };
  for (uint64_t i = 0; i < 8; ++i) backward(forward(0, i));
  const auto& bodies = lists.recorded->bodies;
  ASSERT_EQ(bodies.size(), 1u);
  EXPECT_EQ(bodies[0]->state, RecordedBody::State::kWatched);
  Kept under_way = forward(0, 8);
  backward(forward(1, 0));
  EXPECT_EQ(bodies[0]->state, RecordedBody::State::kWatched);
  backward(std::move(under_way));
  backward(forward(2, 0));
  EXPECT_EQ(bodies[0]->checks, 1);
  backward(forward(2, 1));
  EXPECT_EQ(bodies[0]->checks, 1);
  backward(forward(3, 0));
  EXPECT_EQ(bodies[0]->checks, 2);
}

// A measurement does not wait, but judges by as many forwards as a run: the first has cold caches.
TEST(RecordedBody, OneLongForwardSaysNothing) {
  const Case c = Cases()[0];
  LoadedModule lists = Make(c, true);
  lists.recorded->always = false;
  RunOne(lists, c.inputs[0], 0, false);
  const auto& bodies = lists.recorded->bodies;
  ASSERT_EQ(bodies.size(), 1u);
  bodies[0]->forward_seconds = 1;
  lists.recorded->nodes = 1000;
  for (uint64_t i = 1; i < 5; ++i) RunOne(lists, c.inputs[i], i, false);
  EXPECT_EQ(bodies[0]->refusal, "");
  EXPECT_EQ(bodies[0]->checks, 1);
}

}  // namespace pipewright
