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

// Returns the operation that is recorded for one number of samples only.
std::string PlaceOf(const std::string& refusal) {
  const std::string begin = "traced model: ", end = " is recorded for 2 samples only: ";
  const size_t at = refusal.find(end);
  return at == std::string::npos ? refusal : refusal.substr(begin.size(), at - begin.size());
}

std::string Place(NetImpl::Rest rest) { return PlaceOf(Refusal(std::move(rest))); }

TEST(Trace, OperationsOnAnyNumberOfSamplesAreRecorded) {
  EXPECT_EQ(Refusal([](const auto&, const auto& h) { return h.view({-1, 3}).flatten(1); }), "");
  EXPECT_EQ(Refusal([](const auto&, const auto& h) { return torch::dropout(h, 0.5, true); }), "");
  EXPECT_EQ(Refusal([](const auto& x, const auto& h) { return h * x.size(1); }), "");
  EXPECT_EQ(Refusal([](const auto&, const auto& h) { return h.square().mean(); }), "");
}

TEST(Trace, ANumberOfSamplesThatIsRecordedIsRefused) {
  const NetImpl::Rest mean = [](const auto& x, const auto& h) { return h.sum() / x.size(0); };
  EXPECT_EQ(Place(mean), "aten::div");
  const std::string refusal = Refusal(mean);
  EXPECT_EQ(refusal.substr(0, refusal.find('\n')),
            "traced model: aten::div is recorded for 2 samples only: with twice as many, "
            "forward computes something else");
  EXPECT_NE(refusal.find("TraceOptions::fixed_batch"), std::string::npos);
  EXPECT_EQ(Refusal(mean, {.inputs = {}, .fixed_batch = true}), "");
  EXPECT_EQ(Place([](const auto& x, const auto& h) { return h.view({x.size(0), 3}); }),
            "aten::view");
  EXPECT_EQ(Place([](const auto& x, const auto& h) {
              torch::Tensor sum = h[0];
              for (int64_t i = 1; i < x.size(0); ++i) sum = sum + h[i];
              return sum;
            }),
            "prim::Constant")
      << "the loop is unrolled";
}

// The operations and constants are the same, but not what they take.
TEST(Trace, ValuesThatANumberOfSamplesChoosesAreRefused) {
  EXPECT_EQ(Place([](const auto& x, const auto& h) { return x.size(0) > 2 ? h - x : x - h; }),
            "aten::sub");
  EXPECT_EQ(Place([](const auto& x, const auto& h) {
              const torch::Tensor a = h.relu(), b = h.tanh();
              return x.size(0) > 2 ? torch::stack({a, b}) : torch::stack({b, a});
            }),
            "prim::ListConstruct");
  torch::nn::Linear a(3, 3), b(3, 3);
  Net net([&](const auto& x, const auto& h) { return (x.size(0) > 2 ? a : b)->forward(h); });
  net->register_module("a", a);
  net->register_module("b", b);
  EXPECT_EQ(PlaceOf(ErrorOf([&] { Trace(net, {torch::rand({2, 3})}); })).find("prim::GetAttr"), 0u);
}

// Inputs that are no samples: a scalar, a mask of as many rows as the example, weights of classes.
struct WithMaskImpl : torch::nn::Module {
  explicit WithMaskImpl(bool reads) : reads(reads) {}
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask,
                        const torch::Tensor& scale) {
    const torch::Tensor h = torch::matmul(mask, x) * scale;
    return reads ? h.sum() / x.size(0) : h.mean();
  }
  bool reads;
};
TORCH_MODULE(WithMask);

TEST(Trace, InputsThatAreNoSamplesDoNotEndTheCheck) {
  const std::vector<at::Tensor> inputs = {torch::rand({2, 2, 3}), torch::rand({2, 2}),
                                          torch::tensor(2.0)};
  WithMask good(false), wrong(true);
  EXPECT_TRUE(Trace(good, inputs).notes.empty());
  EXPECT_EQ(PlaceOf(ErrorOf([&] { Trace(wrong, inputs); })), "aten::div");
  // A mask that may not have more rows, but has as many as there are samples.
  const std::vector<at::Tensor> other = {torch::rand({3, 2}), torch::rand({3}), torch::tensor(2.0)};
  const auto traced = [&](bool reads) {
    torch::nn::Linear layer(2, 3);
    return ErrorOf([&] {
      EXPECT_TRUE(TraceCall(*layer, other, [&](const std::vector<at::Tensor>& given) {
                    const at::Tensor h = layer->forward(given[0]) * given[1] * given[2];
                    return reads ? h.sum() / given[0].size(0) : h.mean();
                  }).notes.empty());
    });
  };
  EXPECT_EQ(traced(false), "");
  EXPECT_EQ(traced(true).find("traced model: aten::div is recorded for 3 samples only"), 0u);
}

TEST(Trace, ANumberOfSamplesThatCannotBeCheckedIsNoted) {
  const auto notes = [](NetImpl::Rest rest, const torch::Tensor& x) {
    Net net(std::move(rest));
    return Trace(net, {x}).notes;
  };
  const torch::Tensor table = torch::rand({2, 3});
  const std::vector<std::string> failed =
      notes([&](const auto&, const auto& h) { return h + table; }, torch::rand({2, 3}));
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0],
            "Trace could not check whether the recorded model holds for another number of samples "
            "than the example's: forward does not run on twice as many: The size of tensor a (4) "
            "must match the size of tensor b (2) at non-singleton dimension 0; give every "
            "microbatch as many samples as the example");
  EXPECT_TRUE(notes([](const auto&, const auto& h) { return h; }, torch::rand({2, 3})).empty());
}

TEST(Trace, WhatChangesFromCallToCallIsRefused) {
  int calls = 0;
  const std::string refusal = Refusal([&](const auto&, const auto& h) { return h * ++calls; });
  EXPECT_EQ(refusal,
            "traced model: aten::mul differs from call to call: on the same inputs, forward "
            "computes something else the second time\n  do not read in C++ what changes between "
            "calls, such as buffers and random numbers (item(), branches): compute with tensors, "
            "as torch::where does");
  torch::nn::BatchNorm1d average(torch::nn::BatchNormOptions(3).momentum(std::nullopt));
  Net net([&](const auto&, const auto& h) { return average->forward(h); });
  net->register_module("average", average);
  const std::string cumulative =
      ErrorOf([&] { Trace(net, {torch::rand({2, 3})}, {.inputs = {}, .fixed_batch = true}); });
  EXPECT_NE(cumulative.find("aten::batch_norm in average differs from call to call"),
            std::string::npos)
      << cumulative;
}

struct Reverse : torch::autograd::Function<Reverse> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.view_as(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext*,
                                               torch::autograd::tensor_list gradients) {
    return {-gradients[0]};
  }
};

TEST(Trace, GradientsThatAreNotRecordedAreRefused) {
  const auto scaled = [](const torch::Tensor& h) { return h / h.abs().amax(1, true); };
  EXPECT_EQ(Refusal([&](const auto&, const auto& h) { return scaled(h); }), "");
  EXPECT_EQ(Refusal([&](const auto&, const auto& h) { return h + scaled(h.detach()); }), "");
  const std::string refusal = Refusal([&](const auto&, const auto& h) {
    const torch::NoGradGuard no_grad;
    return scaled(h);
  });
  EXPECT_EQ(refusal, "") << "for inference";
  const std::string partly = Refusal([&](const auto&, const auto& h) {
    torch::Tensor most;
    {
      const torch::NoGradGuard no_grad;
      most = h.abs().amax(1, true);
    }
    return h / most;
  });
  EXPECT_NE(partly.find(" is not that of the recorded operations"), std::string::npos) << partly;
  EXPECT_NE(Refusal([](const auto&, const auto& h) { return Reverse::apply(h); }), "");
  EXPECT_NE(Refusal([](const auto&, const auto& h) {
              const torch::Tensor y = h * 1;
              if (y.requires_grad()) y.register_hook([](const torch::Tensor& g) { return 2 * g; });
              return y;
            }),
            "");
}

// A model that keeps a mean, with or without a gradient.
struct MeanImpl : torch::nn::Module {
  explicit MeanImpl(bool detaches) : detaches(detaches) {
    layer = register_module("layer", torch::nn::Linear(3, 3));
    mean = register_buffer("mean", torch::zeros(3));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h = layer(x);
    const torch::Tensor y = h - mean;
    const torch::NoGradGuard no_grad;
    mean.mul_(0.9).add_(0.1 * (detaches ? h.detach() : h).mean(0));
    return y;
  }
  bool detaches;
  torch::nn::Linear layer{nullptr};
  torch::Tensor mean;
};
TORCH_MODULE(Mean);

TEST(Trace, ABufferThatWouldKeepAGradientIsRefused) {
  Mean good(true), bad(false);
  EXPECT_EQ(ErrorOf([&] { Trace(good, {torch::rand({2, 3})}); }), "");
  const std::string refusal = ErrorOf([&] { Trace(bad, {torch::rand({2, 3})}); });
  EXPECT_NE(refusal.find("writes a value with a gradient to the buffer \"mean\""),
            std::string::npos)
      << refusal;
  EXPECT_FALSE(bad->mean.requires_grad());
}

TEST(Trace, ExpandedBuffersAndNanAreTaken) {
  Net net([](const auto&, const auto& h) { return h * NAN; });
  net->register_buffer("expanded", torch::rand({1, 3}).expand({4, 3}));
  net->register_buffer("nan", torch::full({1}, NAN).expand({4}));
  EXPECT_EQ(ErrorOf([&] { Trace(net, {torch::rand({2, 3})}); }), "");
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
  EXPECT_EQ(PlaceOf(refused(
                [&](const auto&, const auto& h) { return std::get<0>(lstm->forward(steps(h))); })),
            "aten::zeros");
  EXPECT_EQ(PlaceOf(refused(
                [&](const auto&, const auto& h) { return std::get<0>(gru->forward(steps(h))); })),
            "aten::zeros");
  EXPECT_EQ(refused([&](const auto&, const auto& h) {
              const torch::Tensor first = torch::zeros_like(h).unsqueeze(0);
              return std::get<0>(lstm->forward(steps(h), std::make_tuple(first, first)));
            }),
            "");
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
