// Traces torch::nn models whose code reads, or does not read, the number of samples.
#include "compiler/trace.h"

#include <gtest/gtest.h>

#include "formats/weights/safetensors.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

// A model with one linear layer, and what it does with the result.
struct NetImpl : torch::nn::Module {
  using Rest = std::function<torch::Tensor(const torch::Tensor& x, const torch::Tensor& h)>;
  explicit NetImpl(Rest rest) : rest(std::move(rest)) {
    layer = register_module("layer", torch::nn::Linear(3, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return rest(x, norm(layer(x))); }

  torch::nn::Linear layer{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Rest rest;
};
TORCH_MODULE(Net);

std::string Refusal(NetImpl::Rest rest, const TraceOptions& options = {}) {
  Net net(std::move(rest));
  return ErrorOf([&] { Trace(net, {torch::rand({2, 3})}, options); });
}

TEST(Trace, OperationsOnAnyNumberOfSamplesAreRecorded) {
  EXPECT_EQ(Refusal([](const auto&, const auto& h) { return h.view({-1, 3}).flatten(1); }), "");
  EXPECT_EQ(Refusal([](const auto&, const auto& h) { return torch::dropout(h, 0.5, true); }), "");
  EXPECT_EQ(Refusal([](const auto& x, const auto& h) { return h * x.size(1); }), "");
  EXPECT_EQ(Refusal([](const auto&, const auto& h) { return h.square().mean(); }), "");
}

TEST(Trace, ANumberOfSamplesThatIsRecordedIsRefused) {
  const NetImpl::Rest mean = [](const auto& x, const auto& h) { return h.sum() / x.size(0); };
  const std::string refusal = Refusal(mean);
  EXPECT_EQ(refusal.substr(0, refusal.find('\n')),
            "traced model: aten::div is recorded for 2 samples only: with twice as many, "
            "forward computes something else");
  EXPECT_NE(refusal.find("TraceOptions::fixed_batch"), std::string::npos);
  EXPECT_EQ(Refusal(mean, {.inputs = {}, .fixed_batch = true}), "");
  const auto first = [](const std::string& text) { return text.substr(0, text.find(" is rec")); };
  EXPECT_EQ(first(Refusal([](const auto& x, const auto& h) {
              return h.view({x.size(0), 3});
            })).find("traced model: aten::view"),
            0u);
  EXPECT_NE(Refusal([](const auto& x, const auto& h) {
              torch::Tensor sum = h[0];
              for (int64_t i = 1; i < x.size(0); ++i) sum = sum + h[i];
              return sum;
            }),
            "")
      << "the loop is unrolled";
}

TEST(Trace, TheFirstStateOfAnRnnMustComeFromItsInput) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 3).batch_first(true));
  torch::nn::GRU gru(torch::nn::GRUOptions(3, 3).batch_first(true));
  const auto steps = [](const torch::Tensor& h) { return h.unsqueeze(1); };
  const auto refused = [&](NetImpl::Rest rest) {
    Net net(std::move(rest));
    net->register_module("lstm", lstm);
    net->register_module("gru", gru);
    return ErrorOf([&] { Trace(net, {torch::rand({2, 3})}); });
  };
  EXPECT_NE(
      refused([&](const auto&, const auto& h) { return std::get<0>(lstm->forward(steps(h))); }),
      "");
  EXPECT_NE(
      refused([&](const auto&, const auto& h) { return std::get<0>(gru->forward(steps(h))); }), "");
  EXPECT_EQ(refused([&](const auto&, const auto& h) {
              return std::get<0>(gru->forward(steps(h), torch::zeros_like(h).unsqueeze(0)));
            }),
            "");
}

TEST(Trace, MistakesOfTheCallAreNamed) {
  torch::nn::Linear hidden(3, 3);  // not registered
  EXPECT_EQ(
      Refusal([&](const auto&, const auto& h) { return hidden->forward(h); }),
      "traced model: forward uses a weight of a module that is not registered\n  register each "
      "submodule and parameter: layer = register_module(\"layer\", ...)");
  EXPECT_EQ(Refusal([](const auto&, const auto& h) { return h; },
                    {.inputs = {"x", "y"}, .fixed_batch = false}),
            "Trace: 2 names for 1 input");
  Net net([](const auto&, const auto& h) { return h; });
  EXPECT_EQ(ErrorOf([&] { Trace(net, {torch::rand({2, 3}), torch::rand({2, 3})}); }),
            "Trace: the module's forward does not take 2 arguments of type torch::Tensor, one for "
            "each example input");
}

TEST(Trace, ThePackageKeepsTheExample) {
  Net net([](const auto& x, const auto& h) {
    x.add_(1);  // the example is what forward was given
    return h;
  });
  const torch::Tensor x = torch::rand({2, 3}), given = x.clone();
  Model model = Trace(net, {x}, {.inputs = {"rows"}, .fixed_batch = true});
  CompileOptions options;
  options.output = TempPath("traced.pkg");
  EXPECT_EQ(Compile(model, options).notes,
            (std::vector<std::string>{
                "the model has no markers and is one module; call pipewright::pipe_split() between "
                "layers, or set passes.split = ParseSplit(\"equal:N\")"}));
  const SafetensorsFile file(options.output + "/samples.safetensors");
  torch::Tensor kept = torch::empty({2, 3});
  const TensorInfo& info = file.At("rows");
  ASSERT_EQ(info.shape, (std::vector<int64_t>{2, 3}));
  file.Read(info, 0, static_cast<char*>(kept.data_ptr()), kept.nbytes());
  EXPECT_TRUE(torch::equal(kept, given));

  options.ranks = 2;
  options.output = TempPath("more.pkg");
  EXPECT_NE(ErrorOf([&] {
              Model again = Trace(net, {x}, {.inputs = {}, .fixed_batch = true});
              Compile(again, options);
            }).find("passes.split = ParseSplit(\"equal:2\"); or ranks = 1"),
            std::string::npos);
}

TEST(Trace, LeavesBuffersAndRandomNumbersAsOneRunDoes) {
  const auto rest = [](const auto&, const auto& h) { return torch::dropout(h, 0.5, true); };
  Net traced(rest), run(rest);
  {
    torch::NoGradGuard no_grad;
    run->layer->weight.copy_(traced->layer->weight);
    run->layer->bias.copy_(traced->layer->bias);
  }
  const torch::Tensor x = torch::rand({2, 3});
  torch::manual_seed(5);
  Trace(traced, {x});
  const torch::Tensor after = torch::rand({4});
  torch::manual_seed(5);
  run->forward(x);
  EXPECT_TRUE(torch::equal(after, torch::rand({4})));
  EXPECT_TRUE(torch::equal(traced->norm->running_mean, run->norm->running_mean));
  EXPECT_TRUE(torch::equal(traced->norm->num_batches_tracked, run->norm->num_batches_tracked));
}

}  // namespace
}  // namespace pipewright
