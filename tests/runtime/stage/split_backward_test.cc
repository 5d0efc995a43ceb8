#include "runtime/stage/split_backward.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "runtime/measure/memory_meter.h"
#include "runtime/stage/run_backward.h"
#include "tests/runtime/count_kernels.h"

namespace pipewright {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Model {
  std::string name;
  Tensors inputs, weights;
  std::function<Tensors(const Tensors& x, const Tensors& w)> run;
};

static at::Tensor Random(std::vector<int64_t> sizes) {
  return at::randn(sizes).requires_grad_(true);
}

static at::Tensor Attention(const at::Tensor& x, const at::Tensor& qkv, const at::Tensor& out) {
  auto parts = at::linear(x, qkv).chunk(3, -1);
  for (at::Tensor& part : parts) part = part.unflatten(-1, {2, -1}).transpose(1, 2);
  at::Tensor y = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, true);
  return at::linear(y.transpose(1, 2).flatten(2), out);
}

static std::vector<Model> Models() {
  at::manual_seed(1);
  at::Tensor tokens = at::randint(0, 11, {2, 5});
  at::Tensor mean = at::zeros({4}), variance = at::ones({4});
  return {
      {"MLP",
       {Random({6, 8})},
       {Random({16, 8}), Random({16}), Random({4, 16}), Random({4})},
       [](const Tensors& x, const Tensors& w) -> Tensors {
         return {at::linear(at::relu(at::linear(x[0], w[0], w[1])), w[2], w[3])};
       }},
      {"convolution",
       {Random({2, 3, 8, 8})},
       {Random({4, 3, 3, 3}), Random({4}), Random({4}), Random({4}), Random({5, 4, 3, 3}),
        Random({5}), Random({5})},
       [=](const Tensors& x, const Tensors& w) -> Tensors {
         at::Tensor y = at::conv2d(x[0], w[0], w[1], 1, 1);
         y = at::relu(
             at::batch_norm(y, w[2], w[3], mean.clone(), variance.clone(), true, 0.1, 1e-5, false));
         y = at::conv2d(y, w[4], {}, 2);
         return {at::group_norm(y, 5, w[5], w[6]).mean({2, 3})};
       }},
      {"transformer",
       {Random({2, 5, 8})},
       {Random({8}), Random({8}), Random({24, 8}), Random({8, 8}), Random({8}), Random({8}),
        Random({32, 8}), Random({32}), Random({8, 32}), Random({8}), Random({11, 8})},
       [=](const Tensors& x, const Tensors& w) -> Tensors {
         at::Tensor h = x[0] + at::embedding(w[10], tokens);
         h = h + Attention(at::layer_norm(h, {8}, w[0], w[1]), w[2], w[3]);
         at::Tensor y = at::gelu(at::linear(at::layer_norm(h, {8}, w[4], w[5]), w[6], w[7]));
         h = h + at::linear(y, w[8], w[9]);
         return {at::linear(h, w[10])};  // tied to the embedding
       }},
      {"several inputs and outputs",
       {Random({3, 4}), Random({3, 4})},
       {Random({4, 4}), Random({4}), Random({4})},
       [](const Tensors& x, const Tensors& w) -> Tensors {
         at::Tensor a = at::tanh(at::mm(x[0], w[0]) + w[1]), b = x[1] * w[2];
         b.mul_(a);
         return {a, a + b, w[1] * w[2], x[0] + 1};
       }},
      {"weights used twice",
       {Random({3, 4})},
       {Random({4, 4}), Random({4, 4})},
       [](const Tensors& x, const Tensors& w) -> Tensors {
         at::Tensor both = at::mm(w[0], w[1]);
         at::Tensor y = at::sigmoid(at::mm(at::mm(x[0], w[0]), both));
         return {at::mm(at::mm(y, both.t()), w[0]) * w[1].sum()};
       }},
      {"attention whose queries are weights",
       {Random({2, 6, 8})},
       {Random({1, 3, 8}), Random({8})},
       [](const Tensors& x, const Tensors& w) -> Tensors {
         at::Tensor q = w[0].expand({2, 3, 8}).unsqueeze(1), kv = x[0].unsqueeze(1);
         return {at::prelu(at::scaled_dot_product_attention(q, kv, kv).transpose(1, 3), w[1])};
       }},
      {"a norm that is shared with what runs in W",
       {Random({2, 4}), Random({2, 4})},
       {Random({4}), Random({4}), Random({2, 4}), Random({4}), Random({4}), Random({4})},
       [](const Tensors& x, const Tensors& w) -> Tensors {
         auto norm = [&](const at::Tensor& y) { return at::layer_norm(y, {4}, w[0], w[1]); };
         auto other = [&](const at::Tensor& y) { return at::layer_norm(y, {4}, w[3], w[4]); };
         auto third = [&](const at::Tensor& y) { return at::layer_norm(y, {4}, w[5], w[4]); };
         at::Tensor y = norm(norm(x[0]) + norm(w[2]) + norm(x[1].detach()));
         return {third(other(other(y) * w[3]))};
       }},
      {"a norm that is used twice in I",
       {Random({2, 4})},
       {Random({4}), Random({4})},
       [](const Tensors& x, const Tensors& w) -> Tensors {
         return {at::layer_norm(at::layer_norm(x[0], {4}, w[0], w[1]).tanh(), {4}, w[0], w[1])};
       }},
      {"a write to a view",
       {Random({3, 4})},
       {Random({4, 4}), Random({3})},
       [](const Tensors& x, const Tensors& w) -> Tensors {
         at::Tensor y = at::mm(w[0], w[0]).narrow(0, 0, 3) * 2, z = x[0] * 3;
         y.select(1, 0).copy_(x[0].sum(1));
         z.select(1, 1).copy_(w[1]);
         return {y, z, at::tanh(y + z)};
       }},
      {"nothing leads to the inputs",
       {Random({2, 4})},
       {Random({4, 3}), Random({3})},
       [](const Tensors& x, const Tensors& w) -> Tensors {
         return {at::mm(x[0].detach(), w[0]) * w[1]};
       }},
  };
}

static Tensors OutputGradients(const Tensors& outputs) {
  at::manual_seed(2);
  Tensors gradients;
  for (const at::Tensor& y : outputs) gradients.push_back(at::randn_like(y));
  return gradients;
}

static Tensors Whole(const Model& m, const Tensors& y, const Tensors& gradients) {
  Tensors leaves = m.inputs;
  leaves.insert(leaves.end(), m.weights.begin(), m.weights.end());
  return torch::autograd::grad(y, leaves, gradients, false, false, true);
}

struct Doubles : torch::autograd::FunctionPostHook {
  Tensors operator()(const Tensors& outputs, const Tensors&) override { return {outputs[0] * 2}; }
};

static void ExpectSameBits(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  if (a.defined()) {
    EXPECT_TRUE(at::equal(a, b)) << what;
  }
}

TEST(SplitBackward, HasTheBitsOfTheWholeAndRunsEveryKernelOnce) {
  for (const Model& m : Models()) {
    Tensors y = m.run(m.inputs, m.weights), gradients = OutputGradients(y);
    Tensors whole;
    KernelCounts b = CountKernels([&] { whole = Whole(m, y, gradients); });

    y = m.run(m.inputs, m.weights);
    WeightTail tail;
    Tensors inputs, weights;
    KernelCounts i = CountKernels([&] { inputs = InputGradients(y, gradients, m.inputs, tail); });
    y.clear();
    KernelCounts w = CountKernels([&] { weights = WeightGradients(std::move(tail), m.weights); });

    for (size_t k = 0; k < inputs.size(); ++k)
      ExpectSameBits(inputs[k], whole[k], m.name + ", input " + std::to_string(k));
    for (size_t k = 0; k < weights.size(); ++k)
      ExpectSameBits(weights[k], whole[inputs.size() + k],
                     m.name + ", weight " + std::to_string(k));
    KernelCounts both = i + w;
    EXPECT_EQ(both.flops, b.flops) << m.name;
    EXPECT_EQ(both.calls, b.calls) << m.name;
    EXPECT_EQ(both.masks, b.masks) << m.name;
    // The first output of these kernels is the gradient of their input; the others are for weights.
    const bool shared = m.name == "a norm that is shared with what runs in W";
    for (const auto& [kernel, mask] : i.masks) {
      const bool norm = !shared && kernel.find("norm") != std::string::npos;
      EXPECT_EQ(mask, norm ? b.masks.at(kernel) : (std::vector<int>{mask[0], 0, 0}))
          << m.name << ", " << kernel;
    }
    for (const auto& [kernel, mask] : w.masks) {
      EXPECT_EQ(shared ? 0 : mask[0], 0) << m.name << ", " << kernel;  // a shared one has its own
      EXPECT_EQ(kernel.find("norm") != std::string::npos, shared) << m.name << ", " << kernel;
    }
    if (m.name == "MLP" || m.name == "transformer") {
      EXPECT_GT(i.flops, 0) << m.name;
    }
    if (m.name == "nothing leads to the inputs") {
      EXPECT_TRUE(i.calls.empty()) << m.name;
    }
  }
}

static Tensors ByOurselves(const Tensors& y, const Tensors& leaves, Tensors gradients) {
  return RunBackward(EdgesOf(y), std::move(gradients), EdgesOf(leaves));
}

TEST(RunBackward, HasTheBitsOfTheEngineAndItsKernels) {
  std::vector<Model> models = Models();
  models.push_back({"a view of what was written",
                    {Random({4, 6})},
                    {Random({4, 6}), Random({6})},
                    [](const Tensors& x, const Tensors& w) -> Tensors {
                      at::Tensor y = x[0] * w[0], row = y[1];
                      y.mul_(2);  // the view's node is made when it is used
                      at::Tensor z = row + w[1] + row.exp();
                      y.select(0, 2).copy_(z);
                      return {y + w[1], z, y.t().contiguous() + y.t()};
                    }});
  models.push_back({"an input that is returned",
                    {Random({3})},
                    {Random({3})},
                    [](const Tensors& x, const Tensors& w) -> Tensors {
                      return {x[0], x[0] * w[0] + x[0], x[0].to(at::kDouble)};
                    }});
  for (const Model& m : models) {
    Tensors y = m.run(m.inputs, m.weights), gradients = OutputGradients(y), whole, found;
    KernelCounts engine = CountKernels([&] { whole = Whole(m, y, gradients); });
    Tensors leaves = m.inputs;
    leaves.insert(leaves.end(), m.weights.begin(), m.weights.end());
    y = m.run(m.inputs, m.weights);
    KernelCounts ours = CountKernels([&] { found = ByOurselves(y, leaves, gradients); });
    for (size_t k = 0; k < leaves.size(); ++k) {
      const std::string what = m.name + ", " + std::to_string(k);
      ExpectSameBits(found[k], whole[k], what);
      if (found[k].defined()) {
        EXPECT_EQ(found[k].strides(), whole[k].strides()) << what;
      }
    }
    EXPECT_EQ(ours.calls, engine.calls) << m.name;
    EXPECT_EQ(ours.masks, engine.masks) << m.name;
  }
}

// A leaf that is not requested gets no gradient, and what only it needs is not computed.
TEST(RunBackward, LeavesTheOthersToTheEngine) {
  at::Tensor x = Random({3, 4}), w = Random({4, 4});
  at::Tensor y = at::mm(x, w);
  Tensors found;
  KernelCounts kernels = CountKernels([&] { found = ByOurselves({y}, {w}, {at::ones({3, 4})}); });
  ExpectSameBits(found[0], at::mm(x.detach().t(), at::ones({3, 4})), "w");
  EXPECT_EQ(kernels.calls["aten::mm"], 1);
  EXPECT_FALSE(x.grad().defined());
  y = x * 2;
  y.grad_fn()->add_post_hook(std::make_unique<Doubles>());
  found = ByOurselves({y}, {x}, {at::ones({3, 4})});
  ExpectSameBits(found[0], at::full({3, 4}, 4.0), "by the hook");
}

// W also uses the value from before the write, so its gradient is summed there.
TEST(SplitBackward, AWriteToAViewThatRunsInBothHalves) {
  Model m{"write", {Random({3, 4})}, {Random({4, 4}), Random({3, 4})},
          [](const Tensors& x, const Tensors& w) -> Tensors {
            at::Tensor y = w[1] * 2, before = y * 3;
            y.select(1, 0).copy_(x[0].sum(1));
            return {at::mm(y, w[0]), before};
          }};
  Tensors y = m.run(m.inputs, m.weights), gradients = OutputGradients(y);
  Tensors whole = Whole(m, y, gradients);
  y = m.run(m.inputs, m.weights);
  WeightTail tail;
  Tensors inputs = InputGradients(y, gradients, m.inputs, tail);
  Tensors weights = WeightGradients(std::move(tail), m.weights);
  ExpectSameBits(inputs[0], whole[0], "input");
  for (size_t k = 0; k < 2; ++k) ExpectSameBits(weights[k], whole[1 + k], "weight");
}

// An RNN's kernel computes all its gradients at once: it runs once, in I.
TEST(SplitBackward, RnnLayersRunOnceInI) {
  at::manual_seed(1);
  Model m{"LSTM",
          {Random({7, 2, 4})},
          {Random({12, 4}), Random({12, 3}), Random({12}), Random({12})},
          [](const Tensors& x, const Tensors& w) -> Tensors {
            Tensors state = {at::zeros({1, 2, 3}), at::zeros({1, 2, 3})};
            return {std::get<0>(at::lstm(x[0], state, w, true, 1, 0, true, false, false))};
          }};
  Tensors y = m.run(m.inputs, m.weights), gradients = OutputGradients(y);
  Tensors whole = Whole(m, y, gradients);
  y = m.run(m.inputs, m.weights);
  WeightTail tail;
  Tensors inputs = InputGradients(y, gradients, m.inputs, tail), weights;
  KernelCounts w = CountKernels([&] { weights = WeightGradients(std::move(tail), m.weights); });
  ExpectSameBits(inputs[0], whole[0], "input");
  for (size_t k = 0; k < 4; ++k) ExpectSameBits(weights[k], whole[1 + k], "weight");
  EXPECT_EQ(w.calls.count("aten::mkldnn_rnn_layer_backward"), 0u);
  EXPECT_TRUE(RunsInIAlone("MkldnnRnnLayerBackward0"));
  EXPECT_FALSE(RunsInIAlone("AddmmBackward0"));
}

// Two linears around a GELU: W needs both inputs and both output gradients, and nothing else.
TEST(SplitBackward, KeepsForWWhatWNeeds) {
  at::manual_seed(1);
  at::Tensor x = Random({32, 64}), first = Random({256, 64}), second = Random({16, 256});
  MemoryMeter meter;
  WeightTail tail;
  {
    at::Tensor y = at::linear(at::gelu(at::linear(x, first)), second);
    EXPECT_EQ(meter.live(), 4 * 32 * (256 + 256 + 16));
    Tensors gradients = {at::ones_like(y)};
    Tensors roots = {std::move(y)};
    Tensors found = InputGradients(roots, gradients, {x}, tail);
    EXPECT_EQ(found[0].sizes(), x.sizes());
  }
  // The GELU's output and the gradient of its input; the gradient of the output.
  EXPECT_EQ(meter.live(), 4 * 32 * (256 + 256 + 16));
  Tensors weights = WeightGradients(std::move(tail), {first, second});
  EXPECT_EQ(meter.live(), 4 * (256 * 64 + 16 * 256));
}

TEST(SplitBackward, HandlesVeryDeepGraphs) {
  at::Tensor x = Random({2}), w = Random({2}), y = x;
  for (int i = 0; i < 20000; ++i) y = i % 2 ? y + w : y * w;
  WeightTail tail;
  Tensors inputs = InputGradients({y}, {at::ones({2})}, {x}, tail);
  y.reset();
  EXPECT_TRUE(inputs[0].defined());
  EXPECT_TRUE(WeightGradients(std::move(tail), {w})[0].defined());
}

}  // namespace
}  // namespace pipewright
