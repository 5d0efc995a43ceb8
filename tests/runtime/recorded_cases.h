// Makes modules to record, and one microbatch of them, for the tests of recorded bodies.
#pragma once
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/passes/inliner.h>

#include "ops/transformers_ops.h"
#include "runtime/recorded/choose_body.h"
#include "runtime/stage/island.h"

namespace pipewright {

struct Case {
  std::string name, code;
  Tensors weights;              // w0, w1, ...; those that require no gradient are buffers
  std::vector<Tensors> inputs;  // by microbatch
  std::string refusal = "";     // "": the lists run
};

inline at::Tensor Trained(std::vector<int64_t> sizes) {
  return at::randn(sizes).mul_(0.3).requires_grad_(true);
}

// Replaces dropout like the compiler.
inline void UseKeyedDropout(torch::jit::Graph& graph) {
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

// Calls the operator directly, because scripts in C++ have no torch.ops.
inline void UseGroupedMm(torch::jit::Graph& graph) {
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

// Makes the module with its own weights; with `lists`, also with the recorded body.
inline LoadedModule Make(const Case& c, bool lists) {
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
  std::vector<c10::IValue> numbers;  // outputs that are not tensors
};

// Runs one microbatch; `split`: with I and W.
inline Result RunOne(const LoadedModule& module, const Tensors& inputs, uint64_t microbatch,
                     bool split) {
  SetRandomKey({7, 1, microbatch});
  at::manual_seed(5);
  std::vector<c10::IValue> given(inputs.begin(), inputs.end());
  std::vector<bool> wanted;
  for (const at::Tensor& input : inputs) wanted.push_back(input.is_floating_point());
  Kept kept;
  Result result;
  for (const c10::IValue& output : ForwardIsland(module, given, wanted, &kept))
    if (output.isTensor())
      result.outputs.push_back(output.toTensor());
    else
      result.numbers.push_back(output);
  at::manual_seed(3);
  Tensors gradients;
  for (const at::Tensor& output : kept.outputs)
    gradients.push_back(output.defined() ? at::randn(output.sizes(), output.options())
                                         : at::Tensor());
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

inline void ExpectSame(const Tensors& a, const Tensors& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].defined(), b[i].defined()) << what << " " << i;
    if (a[i].defined()) {
      EXPECT_TRUE(at::equal(a[i], b[i])) << what << " " << i;
    }
  }
}

inline std::vector<Tensors> Batches(std::vector<std::vector<int64_t>> sizes) {
  std::vector<Tensors> batches(10);
  for (Tensors& batch : batches)
    for (const auto& size : sizes) batch.push_back(at::randn(size));
  return batches;
}

// Returns indices that are the same in many microbatches.
inline std::vector<Tensors> Indices() {
  std::vector<Tensors> batches(10);
  for (size_t i = 0; i < batches.size(); ++i)
    batches[i] = {i < 4 ? at::ones({2}, at::kLong)
                        : at::tensor({static_cast<int64_t>(i % 4), int64_t{3}}),
                  at::randn({4, 4})};
  return batches;
}

inline std::vector<Case> Cases() {
  at::manual_seed(1);
  std::vector<Tensors> tokens(10);
  for (Tensors& batch : tokens) batch = {at::randint(0, 11, {2, 5}), at::randn({2, 5, 8})};
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
      {"a function that fills memory by itself",
       "def forward(self, x):\n  return (x * self.w0, torch.max_pool1d(x.detach(), [2]))\n",
       {Trained({4})},
       Batches({{1, 3, 4}}),
       "memory that something else has written to"},
      {"indices in lists",
       "def forward(self, tokens, x):\n"
       "  places : List[Optional[Tensor]] = [None, tokens]\n"
       "  t = torch.index_put(x * self.w0, places, x[:, 1:3])\n"
       "  return (t, self.w1[tokens] * torch.mm(x, self.w0).sum())\n",
       {Trained({4, 4}), at::rand({7})},
       Indices()},
      {"a number from data",
       "def forward(self, x):\n  return x * self.w0 * float(x.sum().item())\n",
       {Trained({4})},
       Batches({{3, 4}}),
       "a number that is computed"},
  };
}

}  // namespace pipewright
