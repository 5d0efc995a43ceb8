// Tests the operators that the compiler puts into modules, and what it knows of PyTorch's.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "ops/cond_gradients.h"
#include "ops/draws.h"
#include "ops/region_ops.h"
#include "ops/statistics.h"
#include "tests/error_text.h"
#include "tests/passes/model_text.h"
#include "tests/passes/run_graph.h"

namespace pipewright {
namespace {

void Register() {
  [[maybe_unused]] static const bool once = RegisterCondGradients() && RegisterRegionOperators();
}

// `z` is an operand of the branch not taken.
TEST(CondGradients, AreZerosWhereTheBranchTakenGivesNone) {
  Register();
  const char head[] = R"IR(
graph(%training : bool, %device : Device, %x : Tensor, %z : Tensor):
  %a : Tensor = pipewright::cond_operand(%x)
  %b : Tensor = pipewright::cond_operand(%z)
  %y : Tensor = aten::sin(%a)
  %n : Tensor = aten::argmax(%a, %none, %no)
)IR";
  const std::string text = std::string(head).replace(
      std::string(head).find("  %a"), 0,
      "  %none : NoneType = prim::Constant()\n  %no : bool = prim::Constant[value=0]()\n");
  for (bool given : {true, false}) {
    const Model model = ParseModel(
        text + (given ? "  %l : Tensor[] = prim::ListConstruct(%y, %n)\n"
                        "  %o : Tensor[] = prim::ListConstruct(%a, %b)\n"
                        "  %r : Tensor[] = pipewright::cond_results(%l, %o)\n"
                        "  %s : Tensor, %m : Tensor = prim::ListUnpack(%r)\n  return (%s, %m)\n"
                      : "  return (%y, %n)\n"));
    at::Tensor x = at::randn({3}).requires_grad_(true), z = at::randn({2}).requires_grad_(true);
    const auto results = RunGraph(model.graph, {true, at::Device("cpu"), x, z});
    EXPECT_TRUE(at::equal(results[0].toTensor(), at::sin(x)));
    EXPECT_TRUE(at::equal(results[1].toTensor(), at::argmax(x)));
    results[0].toTensor().sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::cos(x)));
    ASSERT_EQ(z.grad().defined(), given);
    if (given) {
      EXPECT_TRUE(at::equal(z.grad(), at::zeros({2})));
    }
  }
}

TEST(RegionOps, VmapMapsOverADimension) {
  Register();
  const Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor, %w : Tensor):
  %size : int = prim::Constant[value=4]()
  %how : str = prim::Constant[value="error"]()
  %one : int = prim::Constant[value=1]()
  %zero : int = prim::Constant[value=0]()
  pipewright::vmap_enter(%size, %how)
  %row : Tensor = pipewright::vmap_in(%x, %one)
  %dot : Tensor = aten::dot(%row, %w)
  %norm : Tensor = aten::sin(%w)
  %a : Tensor = pipewright::vmap_out(%dot, %size, %zero)
  %b : Tensor = pipewright::vmap_out(%norm, %size, %one)
  pipewright::vmap_exit()
  return (%a, %b)
)IR");
  const at::Tensor x = at::randn({3, 4}), w = at::randn({3});
  for (int again = 0; again < 2; ++again) {
    const auto results = RunGraph(model.graph, {true, at::Device("cpu"), x, w});
    for (int64_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(at::allclose(results[0].toTensor()[i], at::dot(x.select(1, i), w)));
      // A value that does not depend on the mapped dimension is repeated.
      EXPECT_TRUE(at::equal(results[1].toTensor().select(1, i), at::sin(w)));
    }
  }
  EXPECT_EQ(RegionStep(Find(model, "pipewright::vmap_enter"), "vmap"), 1);
  EXPECT_EQ(RegionStep(Find(model, "pipewright::vmap_exit"), "vmap"), -1);
  EXPECT_EQ(RegionStep(Find(model, "pipewright::vmap_exit"), "autocast"), 0);
  EXPECT_EQ(RegionStep(Find(model, "aten::dot"), "vmap"), 0);
}

TEST(RegionOps, AutocastEndsWithTheRegion) {
  Register();
  const Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %half : int = prim::Constant[value=15]()
  pipewright::autocast_enter(%device, %half)
  %a : Tensor = aten::mm(%x, %x)
  pipewright::autocast_exit(%device)
  %b : Tensor = aten::mm(%x, %x)
  return (%a, %b)
)IR");
  const at::Tensor x = at::randn({3, 3}), half = x.to(at::kBFloat16);
  const auto results = RunGraph(model.graph, {true, at::Device("cpu"), x});
  EXPECT_TRUE(at::equal(results[0].toTensor(), at::mm(half, half)));
  EXPECT_TRUE(at::equal(results[1].toTensor(), at::mm(x, x)));
}

TEST(Draws, OperationsThatDrawRandomNumbers) {
  const Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor, %g : Generator):
  %p : float = prim::Constant[value=0.5]()
  %zero : float = prim::Constant[value=0.]()
  %no : bool = prim::Constant[value=0]()
  %none : NoneType = prim::Constant()
  %a : Tensor = aten::dropout(%x, %p, %training)
  %b : Tensor = aten::dropout(%x, %p, %no)
  %c : Tensor = aten::alpha_dropout(%x, %zero, %training)
  %d : Tensor = aten::scaled_dot_product_attention(%x, %x, %x, %none, %p, %no, %none, %no)
  %e : Tensor = aten::scaled_dot_product_attention(%x, %x, %x, %none, %zero, %no, %none, %no)
  %f : Tensor = aten::bernoulli(%x, %none)
  %h : Tensor = aten::bernoulli(%x, %g)
  %i : Tensor = aten::relu(%x)
  %j : Tensor, %k : Tensor = aten::native_dropout(%x, %p, %training)
  %l : Tensor, %m : Tensor = aten::_fused_dropout(%x, %p, %none)
  %n : Tensor = aten::feature_dropout_(%x, %p, %training)
  %o : Tensor = aten::normal_functional(%x, %zero, %p, %none)
  %q : Tensor = aten::exponential(%x, %p, %none)
  %r : Tensor = aten::rand_like(%x, %none, %none, %none, %none, %none)
  %s : Tensor, %t : Tensor = aten::_scaled_dot_product_flash_attention_for_cpu(%x, %x, %x, %zero, %no, %none, %none)
  %u : Tensor, %v : Tensor = aten::_scaled_dot_product_flash_attention_for_cpu(%x, %x, %x, %p, %no, %none, %none)
  return (%a, %b, %c, %d, %e, %f, %h, %i, %j, %k, %l, %m, %n, %o, %q, %r, %s, %t, %u, %v)
)IR");
  auto draws = [&](const std::string& kind, int nth = 0) {
    return DrawsOf(Find(model, kind, nth));
  };
  auto form = [&](const std::string& kind, int nth = 0) {
    return RepeatableForm(Find(model, kind, nth));
  };
  const std::string number = ", with another number than 1000 for each operation of the model";
  EXPECT_EQ(draws("aten::dropout"), Draws::kDropout);
  EXPECT_EQ(draws("aten::dropout", 1), Draws::kNothing);
  EXPECT_EQ(draws("aten::alpha_dropout"), Draws::kNothing);
  EXPECT_EQ(draws("aten::feature_dropout_"), Draws::kDropout);
  EXPECT_EQ(draws("aten::scaled_dot_product_attention"), Draws::kAttention);
  EXPECT_EQ(draws("aten::scaled_dot_product_attention", 1), Draws::kNothing);
  EXPECT_EQ(draws("aten::bernoulli"), Draws::kGenerator);
  EXPECT_EQ(draws("aten::bernoulli", 1), Draws::kGenerator);
  for (const char* kind : {"aten::normal_functional", "aten::exponential", "aten::rand_like"})
    EXPECT_EQ(draws(kind), Draws::kGenerator);
  EXPECT_EQ(draws("aten::_scaled_dot_product_flash_attention_for_cpu"), Draws::kNothing);
  EXPECT_EQ(draws("aten::_scaled_dot_product_flash_attention_for_cpu", 1), Draws::kHopeless);
  EXPECT_EQ(draws("aten::relu"), Draws::kNothing);
  EXPECT_EQ(draws("aten::native_dropout"), Draws::kNativeDropout);
  EXPECT_EQ(draws("aten::_fused_dropout"), Draws::kHopeless);
  EXPECT_EQ(draws("prim::Constant"), Draws::kNothing);
  EXPECT_EQ(form("aten::dropout"),
            "write ops.pipewright.dropout(x, p, self.training, 1000)" + number);
  EXPECT_EQ(form("aten::feature_dropout_"),
            "write ops.pipewright.feature_dropout(x, p, self.training, 1000)" + number);
  EXPECT_EQ(form("aten::dropout", 1), "");
  EXPECT_EQ(form("aten::bernoulli"),
            "give it generator=ops.pipewright.generator(self.device, 1000)" + number);
  EXPECT_EQ(form("aten::bernoulli", 1), "");  // it has one
}

// With a probability that drops nothing, the results are PyTorch's.
TEST(Attention, WithDropoutComputesAsPyTorch) {
  Register();
  const Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %q : Tensor, %k : Tensor, %v : Tensor, %mask : Tensor?):
  %none : NoneType = prim::Constant()
  %id : int = prim::Constant[value=7]()
  %p : float = prim::Constant[value=1e-12]()
  %no : bool = prim::Constant[value=0]()
  %y : Tensor = pipewright::scaled_dot_product_attention(%q, %k, %v, %mask, %p, %no, %none, %no, %training, %id)
  return (%y)
)IR");
  const at::Tensor sees = at::rand({5, 5}) > 0.3;
  sees[2].fill_(false);  // a row that is masked as a whole
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor q = (10 * at::randn({2, 4, 5, 8})).to(type);
    const at::Tensor k = at::randn({2, 4, 5, 8}).to(type), v = at::randn({2, 4, 5, 8}).to(type);
    for (const c10::IValue& mask :
         {c10::IValue(), c10::IValue(sees), c10::IValue(at::randn({5, 5}).to(type))}) {
      const at::Tensor ours =
          RunGraph(model.graph, {true, at::Device("cpu"), q, k, v, mask})[0].toTensor();
      std::optional<at::Tensor> added;
      if (mask.isTensor()) added = mask.toTensor();
      if (added && added->scalar_type() == at::kBool)
        added = at::zeros({5, 5}, type).masked_fill(sees.logical_not(), -INFINITY);
      const at::Tensor theirs = std::get<0>(at::_scaled_dot_product_attention_math(q, k, v, added));
      EXPECT_TRUE(at::equal(ours, theirs)) << type << (ours - theirs).abs().max();
    }
  }
}

TEST(Statistics, KeptPartIsWhatTheNormKeeps) {
  const Model model = ParseModel(R"IR(
graph(%mean : Tensor, %var : Tensor, %training : bool, %device : Device, %x : Tensor, %m : float):
  %none : NoneType = prim::Constant()
  %tenth : float = prim::Constant[value=0.1]()
  %half : float = prim::Constant[value=0.5]()
  %eps : float = prim::Constant[value=0.00001]()
  %no : bool = prim::Constant[value=0]()
  %a : Tensor = aten::batch_norm(%x, %none, %none, %mean, %var, %training, %tenth, %eps, %no)
  %b : Tensor = aten::instance_norm(%a, %none, %none, %mean, %var, %training, %half, %eps, %no)
  %c : Tensor = aten::batch_norm(%x, %none, %none, %device, %var, %no, %tenth, %eps, %no)
  %d : Tensor = aten::batch_norm(%x, %none, %none, %b, %a, %training, %m, %eps, %no)
  return (%b, %c, %d)
)IR",
                                 {Buffer("mean"), Buffer("var")});
  EXPECT_TRUE(WritesStatistics(Find(model, "aten::batch_norm")));
  EXPECT_TRUE(WritesStatistics(Find(model, "aten::instance_norm")));
  EXPECT_FALSE(WritesStatistics(Find(model, "aten::batch_norm", 1)));
  EXPECT_FALSE(WritesStatistics(Find(model, "prim::Constant")));
  const std::optional<double> kept = KeptPart({model.weight_input(0)});
  ASSERT_TRUE(kept);
  // The same norms on two means: their difference shrinks by this part.
  const at::Tensor x = at::randn({4, 3, 5});
  at::Tensor means[2] = {at::zeros({3}), at::ones({3})};
  for (at::Tensor& mean : means) {
    at::Tensor var = at::ones({3});
    const at::Tensor a = at::batch_norm(x, {}, {}, mean, var, true, 0.1, 1e-5, false);
    at::instance_norm(a, {}, {}, mean, var, true, 0.5, 1e-5, false);
  }
  EXPECT_TRUE(at::allclose(means[1] - means[0], at::full({3}, *kept)));
  EXPECT_EQ(KeptPart({Find(model, "aten::batch_norm")->output()}), std::nullopt);     // other uses
  EXPECT_EQ(KeptPart({Find(model, "aten::instance_norm")->output()}), std::nullopt);  // momentum %m
  EXPECT_EQ(KeptPart({}), std::nullopt);
}

TEST(Statistics, OfOneValueAreRefusedInTraining) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor, %instance : Tensor):
  %none : NoneType = prim::Constant()
  %tenth : float = prim::Constant[value=0.1]()
  %eps : float = prim::Constant[value=0.00001]()
  %no : bool = prim::Constant[value=0]()
  %yes : bool = prim::Constant[value=1]()
  %a : Tensor = aten::batch_norm(%x, %none, %none, %none, %none, %yes, %tenth, %eps, %no)
  %b : Tensor = aten::instance_norm(%instance, %none, %none, %none, %none, %yes, %tenth, %eps, %no)
  return (%a, %b)
)IR");
  CheckStatistics(*model.graph);
  auto error = [&](std::vector<int64_t> batch, std::vector<int64_t> instance) {
    return ErrorOf<std::exception>([&] {
      RunGraph(model.graph, {true, at::Device("cpu"), at::ones(batch), at::ones(instance)});
    });
  };
  EXPECT_EQ(error({2, 3}, {1, 3, 2}), "");
  EXPECT_EQ(error({1, 3, 2}, {1, 3, 2}), "");
  EXPECT_NE(error({1, 3}, {1, 3, 2})
                .find("batch norm in training needs more than one value per channel, and its input "
                      "has sizes [1, 3]: the variance of one value is not defined; give each "
                      "microbatch two samples or more"),
            std::string::npos);
  EXPECT_NE(error({2, 3}, {4, 3, 1}).find("instance norm in training needs more than one value"),
            std::string::npos);
}

}  // namespace
}  // namespace pipewright
