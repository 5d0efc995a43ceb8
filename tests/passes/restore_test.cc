// Restores what an export fixed: training flags, devices, random operations and dense gradients.
#include <gtest/gtest.h>
#include <torch/csrc/jit/ir/constants.h>

#include "base/error.h"
#include "passes/dense_gradients.h"
#include "passes/random_operations.h"
#include "passes/restore_devices.h"
#include "passes/restore_training.h"
#include "tests/passes/model_text.h"

namespace pipewright {
namespace {

TEST(RestoreTraining, SetFlagsFollowTheModule) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %p : float = prim::Constant[value=0.5]()
  %on : bool = prim::Constant[value=1]()
  %off : bool = prim::Constant[value=0]()
  %a : Tensor = aten::dropout(%x, %p, %on)
  %b : Tensor = aten::dropout(%a, %p, %off)
  return (%b)
)IR");
  RestoreTraining(model);
  EXPECT_TRUE(model.in_training);
  Expect()
      .check("aten::dropout(%x, %p, %training)")
      ->check("aten::dropout(%a, %p, %off)")
      ->run(*model.graph);
}

TEST(MakeGradientsDense, SparseEmbeddingsBecomeDenseWithANote) {
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor):
  %padding : int = prim::Constant[value=-1]()
  %off : bool = prim::Constant[value=0]()
  %on : bool = prim::Constant[value=1]()
  %a : Tensor = aten::embedding(%w, %x, %padding, %off, %on)
  %b : Tensor = aten::embedding(%w, %x, %padding, %on, %off)
  %c : Tensor = aten::add(%a, %b, %padding)
  return (%c)
)IR");
  std::vector<std::string> notes;
  MakeGradientsDense(model, &notes);
  for (int nth : {0, 1})
    EXPECT_EQ(torch::jit::constant_as<bool>(Find(model, "aten::embedding", nth)->input(4)), false);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_TRUE(notes[0].ends_with(
      "has a dense gradient here (sparse=True in the model): the optimizer updates every row of "
      "the weight"))
      << notes[0];
}

TEST(RestoreTraining, ModelInEvaluationStaysThere) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %p : float = prim::Constant[value=0.5]()
  %off : bool = prim::Constant[value=0]()
  %a : Tensor = aten::dropout(%x, %p, %off)
  return (%a)
)IR");
  RestoreTraining(model);
  EXPECT_FALSE(model.in_training);
  Expect().check("aten::dropout(%x, %p, %off)")->run(*model.graph);
}

TEST(RestoreTraining, ModelWithoutFlagsIsTheSameInBothModes) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %a : Tensor = aten::relu(%x)
  return (%a)
)IR");
  RestoreTraining(model);
  EXPECT_TRUE(model.in_training);
}

TEST(RestoreTraining, BatchNormWithoutStatisticsAlwaysUsesTheBatch) {
  const char* kText = R"IR(
graph(%mean : Tensor, %seen : Tensor, %training : bool, %device : Device, %x : Tensor):
  %none : NoneType = prim::Constant()
  %on : bool = prim::Constant[value=1]()
  %one : int = prim::Constant[value=1]()
  %e : float = prim::Constant[value=0.1]()
  %n : Tensor = aten::add_(%seen, %one, %one)
  %a : Tensor = aten::batch_norm(%x, %none, %none, %mean, %mean, %on, %e, %e, %on)
  %b : Tensor = aten::batch_norm(%a, %none, %none, %none, %none, %on, %e, %e, %on)
  return (%b)
)IR";
  Model model = ParseModel(kText, {Buffer("bn.running_mean"), Buffer("bn.num_batches_tracked")});
  RestoreTraining(model);
  Expect()
      .check("aten::Int(%training)")
      ->check("aten::add_(%seen, ")
      ->check("aten::batch_norm(%x, %none, %none, %mean, %mean, %training, %e, %e, %on)")
      ->check("aten::batch_norm(%a, %none, %none, %none, %none, %on, %e, %e, %on)")
      ->run(*model.graph);
}

TEST(RestoreTraining, OtherCountersAreLeftAlone) {
  Model model = ParseModel(R"IR(
graph(%count : Tensor, %training : bool, %device : Device, %x : Tensor):
  %on : bool = prim::Constant[value=1]()
  %one : int = prim::Constant[value=1]()
  %p : float = prim::Constant[value=0.1]()
  %n : Tensor = aten::add_(%count, %one, %one)
  %a : Tensor = aten::dropout(%x, %p, %on)
  return (%a)
)IR",
                           {Buffer("steps")});
  RestoreTraining(model);
  Expect().check("aten::add_(%count, %one, %one)")->run(*model.graph);
}

TEST(RestoreDevices, EveryDeviceIsTheRanks) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %cpu : Device = prim::Constant[value="cpu"]()
  %gpu : Device = prim::Constant[value="cuda:1"]()
  %none : NoneType = prim::Constant()
  %n : int = prim::Constant[value=3]()
  %a : Tensor = aten::arange(%n, %none, %none, %cpu, %none)
  %b : Tensor = aten::arange(%n, %none, %none, %gpu, %none)
  return (%a, %b)
)IR");
  RestoreDevices(model);
  Expect()
      .check("aten::arange(%n, %none, %none, %device, %none)")
      ->check("aten::arange(%n, %none, %none, %device, %none)")
      ->run(*model.graph);
}

TEST(RandomOperations, DropoutAndAttentionGetIds) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %p : float = prim::Constant[value=0.5]()
  %zero : float = prim::Constant[value=0.]()
  %off : bool = prim::Constant[value=0]()
  %none : NoneType = prim::Constant()
  %a : Tensor = aten::dropout(%x, %p, %training)
  %b : Tensor = aten::scaled_dot_product_attention(%a, %a, %a, %none, %p, %off, %none, %off)
  %c : Tensor = aten::scaled_dot_product_attention(%b, %b, %b, %none, %zero, %off, %none, %off)
  %d : Tensor = aten::dropout(%c, %p, %off)
  return (%d)
)IR");
  RewriteRandomOperations(model);
  model.graph->lint();
  Expect()
      .check("value=0]()")
      ->check("%a : Tensor = pipewright::dropout(%x, %p, %training, ")
      ->check("value=1]()")
      ->check(
          "pipewright::scaled_dot_product_attention(%a, %a, %a, %none, %p, %off, %none, %off, "
          "%training, ")
      ->check("aten::scaled_dot_product_attention(%b, ")
      ->check("aten::dropout(%c, %p, %off)")
      ->run(*model.graph);
}

TEST(RandomOperations, DropoutBetweenLayersOfAnRnnIsAnOperation) {
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor, %h : Tensor):
  %p : float = prim::Constant[value=0.5]()
  %off : bool = prim::Constant[value=0]()
  %two : int = prim::Constant[value=2]()
  %list : Tensor[] = prim::ListConstruct(%w, %w, %w, %w)
  %y : Tensor, %n : Tensor = aten::gru(%x, %h, %list, %off, %two, %p, %training, %off, %off)
  return (%y)
)IR",
                           {Parameter("w")});
  RewriteRandomOperations(model);
  model.graph->lint();
  Expect()
      .check("aten::gru(%x, ")
      ->check("pipewright::dropout(")
      ->check("aten::gru(")
      ->check_not("aten::gru(")
      ->run(*model.graph);
}

TEST(RandomOperations, DropoutOfAPackedSequenceIsRefused) {
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor, %b : Tensor, %h : Tensor):
  %p : float = prim::Constant[value=0.5]()
  %off : bool = prim::Constant[value=0]()
  %two : int = prim::Constant[value=2]()
  %list : Tensor[] = prim::ListConstruct(%w, %w, %w, %w)
  %y : Tensor, %n : Tensor = aten::gru(%x, %b, %h, %list, %off, %two, %p, %training, %off)
  return (%y)
)IR",
                           {Parameter("w")});
  try {
    RewriteRandomOperations(model);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("between single-layer RNNs"), std::string::npos);
  }
}

TEST(RandomOperations, OthersDrawFromAGenerator) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %none : NoneType = prim::Constant()
  %n : int = prim::Constant[value=3]()
  %s : int[] = prim::ListConstruct(%n)
  %a : Tensor = aten::bernoulli(%x, %none)
  %b : Tensor = aten::rand(%s, %none, %none, %none, %none)
  return (%a, %b)
)IR");
  RewriteRandomOperations(model);
  model.graph->lint();
  Expect()
      .check_count("pipewright::generator(%device, ", 1)
      ->check("aten::bernoulli(%x, ")
      ->check_count("pipewright::generator(%device, ", 1)
      ->check("aten::rand(%s, ")
      ->run(*model.graph);
  EXPECT_EQ(Find(model, "aten::rand")->schema().overload_name(), "generator");
}

TEST(RandomOperations, OtherDropoutsAreKeyedToo) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %p : float = prim::Constant[value=0.5]()
  %a : Tensor = aten::alpha_dropout(%x, %p, %training)
  %b : Tensor = aten::feature_dropout_(%a, %p, %training)
  return (%b)
)IR");
  RewriteRandomOperations(model);
  // An in-place operator writes its result back.
  Expect()
      .check("pipewright::alpha_dropout(%x, %p, %training, ")
      ->check("pipewright::feature_dropout(%a, %p, %training, ")
      ->check("aten::copy_(%a, %b, ")
      ->run(*model.graph);
}

TEST(RandomOps, MasksDependOnTheKeyAlone) {
  auto draw = [](RandomKey key, int64_t id) {
    SetRandomKey(key);
    auto op = torch::jit::getOperatorForLiteral(
        "pipewright::dropout(Tensor input, float p, bool train, int id) -> Tensor");
    torch::jit::Stack stack{at::ones({64, 64}), 0.5, true, id};
    op->getOperation()(stack);
    return stack.back().toTensor();
  };
  at::Tensor first = draw({1, 2, 3}, 4);
  at::manual_seed(99);
  EXPECT_TRUE(at::equal(first, draw({1, 2, 3}, 4)));
  EXPECT_FALSE(at::equal(first, draw({0, 2, 3}, 4)));
  EXPECT_FALSE(at::equal(first, draw({1, 0, 3}, 4)));
  EXPECT_FALSE(at::equal(first, draw({1, 2, 0}, 4)));
  EXPECT_FALSE(at::equal(first, draw({1, 2, 3}, 0)));
}

}  // namespace
}  // namespace pipewright
