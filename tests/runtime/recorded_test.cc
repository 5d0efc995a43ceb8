#include "runtime/recorded/choice.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/passes/inliner.h>

#include "passes/transformers_ops.h"
#include "runtime/island.h"
#include "runtime/memory_meter.h"
#include "tests/runtime/count_kernels.h"

namespace pipewright {

struct Case {
  std::string name, code;
  Tensors weights;              // w0, w1, ...; those that require no gradient are buffers
  std::vector<Tensors> inputs;  // of microbatches, one after another
  std::string refusal = "";     // "": the lists run
};

static at::Tensor Trained(std::vector<int64_t> sizes) {
  return at::randn(sizes).mul_(0.3).requires_grad_(true);
}

// As the compiler replaces it.
static void UseKeyedDropout(torch::jit::Graph& graph) {
  for (torch::jit::Node* node : graph.nodes()) {
    if (node->kind() != c10::Symbol::fromQualString("aten::dropout")) continue;
    torch::jit::WithInsertPoint here(node);
    std::vector<torch::jit::Value*> inputs = node->inputs().vec();
    inputs.push_back(graph.insertConstant(3));
    torch::jit::Node* keyed =
        graph.create(c10::Symbol::fromQualString("pipewright::dropout"), inputs);
    keyed->insertBefore(node);
    keyed->output()->setType(c10::TensorType::get());
    node->output()->replaceAllUsesWith(keyed->output());
    node->destroy();
    return;
  }
}

// Scripts in C++ have no torch.ops.
static void UseGroupedMm(torch::jit::Graph& graph) {
  RegisterTransformersOperators();
  for (auto node = graph.nodes().begin(); node != graph.nodes().end(); ++node) {
    if (node->kind() != c10::Symbol::aten("_grouped_mm")) continue;
    torch::jit::WithInsertPoint here(*node);
    torch::jit::Value* grouped =
        graph.insert(c10::Symbol::fromQualString("transformers::grouped_mm_fallback"),
                     {node->input(0), node->input(1), node->input(2)});
    node->output()->replaceAllUsesWith(grouped);
    node.destroyCurrent();
  }
}

// `lists`: with the second body. The weights are its own.
static LoadedModule Make(const Case& c, bool lists) {
  torch::jit::Module script("m");
  LoadedModule module;
  for (size_t i = 0; i < c.weights.size(); ++i) {
    const bool trained = c.weights[i].requires_grad();
    module.weights.push_back(c.weights[i].detach().clone().set_requires_grad(trained));
    if (trained)
      script.register_parameter("w" + std::to_string(i), module.weights.back(), false);
    else
      script.register_buffer("w" + std::to_string(i), module.weights.back());
  }
  script.define(c.code);
  auto graph = script.get_method("forward").graph()->copy();
  torch::jit::Inline(*graph);
  UseKeyedDropout(*graph);
  UseGroupedMm(*graph);
  module.self = script._ivalue();
  module.code = std::make_unique<torch::jit::Code>(graph, c.name);
  if (lists) {
    module.recorded = std::make_shared<RecordedBodies>();
    module.recorded->always = module.recorded->now = true;
  }
  return module;
}

struct Result {
  Tensors outputs, inputs, weights, buffers;
};

// One microbatch; `split`: by I and W.
static Result RunOne(const LoadedModule& module, const Tensors& inputs, uint64_t microbatch,
                     bool split) {
  SetRandomKey({7, 1, microbatch});
  at::manual_seed(5);
  std::vector<c10::IValue> given(inputs.begin(), inputs.end());
  std::vector<bool> wanted;
  for (const at::Tensor& input : inputs) wanted.push_back(input.is_floating_point());
  Kept kept;
  Result result;
  for (const c10::IValue& output : ForwardIsland(module, given, wanted, &kept))
    result.outputs.push_back(output.toTensor());
  at::manual_seed(3);
  Tensors gradients;
  for (const at::Tensor& output : kept.outputs)
    gradients.push_back(output.defined() ? at::randn(output.sizes()) : at::Tensor());
  if (split) {
    WeightTail tail;
    result.inputs = InputGradientsOf(module, std::move(kept), std::move(gradients), tail);
    result.weights = WeightGradientsOf(module, std::move(tail));
  } else {
    ModuleGradients found = BackwardIsland(module, std::move(kept), std::move(gradients));
    result.inputs = found.inputs;
    result.weights = found.weights;
  }
  for (const at::Tensor& weight : module.weights)
    if (!weight.requires_grad()) result.buffers.push_back(weight.clone());
  return result;
}

static void ExpectSame(const Tensors& a, const Tensors& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << what << " " << i;
    if (a[i].defined()) {
      EXPECT_TRUE(at::equal(a[i], b[i])) << what << " " << i;
    }
  }
}

static std::vector<Tensors> Batches(std::vector<std::vector<int64_t>> sizes) {
  std::vector<Tensors> batches(10);
  for (Tensors& batch : batches)
    for (const auto& size : sizes) batch.push_back(at::randn(size));
  return batches;
}

static std::vector<Case> Cases() {
  at::manual_seed(1);
  std::vector<Tensors> tokens(10);
  for (Tensors& batch : tokens) batch = {at::randint(0, 11, {2, 5}), at::randn({2, 5, 8})};
  // Every microbatch has other groups, some of them empty.
  std::vector<Tensors> experts(10);
  for (Tensors& batch : experts)
    batch = {at::randn({7, 4}), std::get<0>(at::randint(0, 8, {3}, at::kInt).sort())};
  return {
      {"MLP",
       "def forward(self, x):\n  y = torch.relu(torch.linear(x, self.w0, self.w1))\n"
       "  return torch.linear(torch.tanh(y), self.w2, self.w3)\n",
       {Trained({16, 8}), Trained({16}), Trained({4, 16}), Trained({4})},
       Batches({{6, 8}})},
      {"convolution",
       "def forward(self, x):\n"
       "  y = torch.conv2d(x, self.w0, self.w1, [1, 1], [1, 1])\n"
       "  y = torch.batch_norm(y, self.w2, self.w3, self.w7, self.w8, True, 0.1, 1e-5, False)\n"
       "  y = torch.conv2d(torch.relu_(y), self.w4, None, [2, 2])\n"
       "  return torch.group_norm(y, 5, self.w5, self.w6).mean([2, 3])\n",
       {Trained({4, 3, 3, 3}), Trained({4}), Trained({4}), Trained({4}), Trained({5, 4, 3, 3}),
        Trained({5}), Trained({5}), at::zeros({4}), at::ones({4})},
       Batches({{2, 3, 8, 8}})},
      {"transformer",
       "def forward(self, tokens, x):\n"
       "  h = x + torch.embedding(self.w10, tokens)\n"
       "  y = torch.linear(torch.layer_norm(h, [8], self.w0, self.w1), self.w2, self.w3)\n"
       "  q, k, v = torch.chunk(y, 3, -1)\n"
       "  q = q.view([2, 5, 2, 4]).transpose(1, 2)\n"
       "  k = k.view([2, 5, 2, 4]).transpose(1, 2)\n"
       "  v = v.view([2, 5, 2, 4]).transpose(1, 2)\n"
       "  a = torch.scaled_dot_product_attention(q, k, v, None, 0., True)\n"
       "  h = h + torch.linear(a.transpose(1, 2).flatten(2), self.w11)\n"
       "  y = torch.gelu(torch.linear(torch.layer_norm(h, [8], self.w4, self.w5), self.w6, "
       "self.w7))\n"
       "  y = torch.dropout(torch.linear(y, self.w8, self.w9), 0.25, True)\n"
       "  return torch.linear(h + y, self.w10)\n",
       {Trained({8}), Trained({8}), Trained({24, 8}), Trained({24}), Trained({8}), Trained({8}),
        Trained({32, 8}), Trained({32}), Trained({8, 32}), Trained({8}), Trained({11, 8}),
        Trained({8, 8})},
       tokens},
      {"several inputs and outputs",
       "def forward(self, x, z):\n  a = torch.tanh(torch.mm(x, self.w0) + self.w1)\n"
       "  b = z * self.w2\n  b = b.mul_(a)\n"
       "  return (a, a + b, self.w1 * self.w2, x + 1)\n",
       {Trained({4, 4}), Trained({4}), Trained({4})},
       Batches({{3, 4}, {3, 4}})},
      {"weights used twice",
       "def forward(self, x):\n  both = torch.mm(self.w0, self.w1)\n"
       "  y = torch.sigmoid(torch.mm(torch.mm(x, self.w0), both))\n"
       "  return torch.mm(torch.mm(y, both.t()), self.w0) * self.w1.sum()\n",
       {Trained({4, 4}), Trained({4, 4})},
       Batches({{3, 4}})},
      {"outputs that share memory",
       "def forward(self, x, z):\n  y = torch.tanh(x * self.w0)\n"
       "  return (y, y.t(), y[1:], self.w0, x, x.view([-1]), z * 2, self.w1 + y, y)\n",
       {Trained({4}), at::ones({4})},
       Batches({{4, 4}, {4, 4}})},
      {"buffers that count and average",
       "def forward(self, x):\n  n = self.w1.add_(1)\n  m = "
       "self.w2.mul_(0.9).add_(x.detach().mean(0), "
       "alpha=0.1)\n  return torch.mm(x - m, self.w0)\n",
       {Trained({4, 4}), at::zeros({}, at::kLong), at::zeros({4})},
       Batches({{3, 4}})},
      {"a buffer that backward reads",
       "def forward(self, x):\n  y = x * self.w0 * self.w1[1:]\n  return y\n",
       {Trained({4}), at::ones({5})},
       Batches({{3, 4}})},
      {"experts",
       "def forward(self, x, offs):\n"
       "  y = torch._grouped_mm(torch.tanh(x), self.w0.transpose(1, 2), offs)\n"
       "  return torch._grouped_mm(torch.relu(y), self.w1, offs) * self.w2\n",
       {Trained({3, 6, 4}), Trained({3, 6, 5}), Trained({5})},
       experts},
      {"complex numbers",
       "def forward(self, x):\n  y = torch.fft_fft(x * self.w0)\n"
       "  return torch.real(y) + torch.imag(y * self.w0)\n",
       {Trained({4})},
       Batches({{3, 4}}),
       "."},
      {"a solved system",
       "def forward(self, x):\n  return torch.linalg_solve(torch.mm(x, self.w0), self.w1)\n",
       {Trained({4, 4}), Trained({4, 4})},
       Batches({{4, 4}}),
       "a check"},
      {"own random numbers",
       "def forward(self, x):\n  return torch.rand_like(x) * x * self.w0\n",
       {Trained({4})},
       Batches({{3, 4}}),
       "random numbers"},
      {"a size from data",
       "def forward(self, x):\n  return (x * self.w0)[x > -9.0].view([-1, 4]) * self.w0\n",
       {Trained({4})},
       Batches({{3, 4}}),
       "sizes that depend on the data"},
      {"a number from data",
       "def forward(self, x):\n  return x * self.w0 * float(x.sum().item())\n",
       {Trained({4})},
       Batches({{3, 4}}),
       "a number that is computed"},
  };
}

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

// I asks for gradients of inputs only, W for those of weights, and each kernel runs once.
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
    // A normalisation's sums are not made twice.
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
    int64_t buffers = 0;  // what forward writes to is copied
    for (const at::Tensor& weight : c.weights)
      if (!weight.requires_grad()) buffers += static_cast<int64_t>(weight.nbytes());
    for (int k = 0; k < 3; ++k)
      EXPECT_LE(held[1][k], held[0][k] + (k < 2 ? buffers : 0)) << c.name << ", " << k;
  }
}

// What the lists were recorded for does not come: the module runs again by autograd.
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

// Buffers are as before the forward that runs again, and afterwards as if it had not.
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

// What autograd forbids is not done silently: a buffer that forward writes and backward reads.
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

// Where nobody asks for lists: recorded at the start of a step, when nothing is under way.
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

// Who measures does not wait, but judges by as many forwards as a run: the first finds caches cold.
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
