// Tests what the passes know about a graph (memory, unset values, costs), and passes that change
// the order of nodes.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "passes/graph/hidden_memory.h"
#include "passes/graph/memory.h"
#include "passes/graph/node_cost.h"
#include "passes/graph/unset.h"
#include "passes/rnn_dropout.h"
#include "passes/split/sort_modules.h"
#include "tests/error_text.h"
#include "tests/passes/model_text.h"
#include "tests/passes/run_graph.h"

namespace pipewright {
namespace {

torch::jit::Value* Named(const Model& model, const std::string& name) {
  for (torch::jit::Value* input : model.graph->inputs())
    if (input->debugName() == name) return input;
  for (torch::jit::Node* node : AllNodes(*model.graph))
    for (torch::jit::Value* output : node->outputs())
      if (output->debugName() == name) return output;
  ADD_FAILURE() << "no value " << name;
  return nullptr;
}

std::vector<Write> WritesOf(const Model& model) {
  std::vector<Write> writes;
  size_t position = 0;
  for (torch::jit::Node* node : model.graph->nodes()) CollectWrites(node, position++, writes);
  return writes;
}

TEST(Memory, IsSharedByViewsAndLists) {
  const Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor, %y : Tensor):
  %one : int = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %v : Tensor = aten::transpose(%x, %one, %two)
  %w : Tensor = aten::select(%v, %one, %one)
  %l : Tensor[] = prim::ListConstruct(%w, %y)
  %c : Tensor = aten::cat(%l, %one)
  %d : Tensor = aten::detach(%x)
  %s : Tensor = aten::add_(%w, %y, %one)
  %t : Tensor[] = aten::append(%l, %c)
  return (%s, %c, %d)
)IR");
  Memory memory(model, Alias::kKnown);
  auto share = [&](const char* a, const char* b) {
    return memory.Share(Named(model, a), Named(model, b));
  };
  EXPECT_TRUE(share("x", "v") && share("x", "w") && share("v", "w") && share("s", "x"));
  EXPECT_TRUE(share("l", "x") && share("l", "y"));
  EXPECT_TRUE(share("d", "x"));
  EXPECT_FALSE(share("x", "y") || share("c", "x") || share("c", "y"));
  EXPECT_EQ(memory.ViewedBy(Named(model, "w")), Named(model, "x"));
  EXPECT_EQ(memory.ViewedBy(Named(model, "c")), Named(model, "c"));
  EXPECT_TRUE(HasMemory(Named(model, "l")));
  EXPECT_FALSE(HasMemory(Named(model, "one")));
  const std::vector<Write> writes = WritesOf(model);
  ASSERT_EQ(writes.size(), 2u);
  EXPECT_EQ(writes[0].node, Find(model, "aten::add_"));
  EXPECT_EQ(writes[0].position, 7u);
  EXPECT_EQ(Returned(writes[0].node), Named(model, "w"));
  EXPECT_EQ(Returned(Find(model, "aten::cat")), nullptr);
  EXPECT_EQ(memory.Written(writes[0]), Memory::Values{Named(model, "x")});
  EXPECT_FALSE(memory.Written(writes[1]).count(Named(model, "x")));  // only the list grows
  // No gradient passes from a tensor to one detached from it.
  Memory gradients(model, Alias::kKnown, /*of_gradients=*/true);
  EXPECT_FALSE(gradients.Share(Named(model, "d"), Named(model, "x")));
  EXPECT_TRUE(gradients.Share(Named(model, "w"), Named(model, "x")));
}

TEST(HiddenMemory, WritesThatAutogradDoesNotSee) {
  const Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor, %y : Tensor, %sizes : int[]):
  %one : int = prim::Constant[value=1]()
  %u : Tensor = aten::_unsafe_view(%x, %sizes)
  %v : Tensor = aten::select(%u, %one, %one)
  %a : Tensor = aten::add_(%v, %y, %one)
  %w : Tensor = aten::view(%y, %sizes)
  %b : Tensor = aten::add_(%w, %x, %one)
  return (%a, %b)
)IR");
  EXPECT_TRUE(HidesMemory(Find(model, "aten::_unsafe_view")));
  EXPECT_FALSE(HidesMemory(Find(model, "aten::view")));
  Memory memory(model, Alias::kKnown);
  const std::vector<torch::jit::Node*> nodes(model.graph->nodes().begin(),
                                             model.graph->nodes().end());
  const std::vector<Write> writes = WritesOf(model);
  ASSERT_EQ(writes.size(), 2u);
  EXPECT_TRUE(IsBehindAutograd(writes[0], nodes, memory));
  EXPECT_FALSE(IsBehindAutograd(writes[1], nodes, memory));
}

TEST(Unset, ValuesOfBranchesThatReturnEarly) {
  const Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor, %c : bool):
  %u : Tensor = prim::Uninitialized()
  %a : Tensor, %b : Tensor = prim::If(%c)
    block0():
      %s : Tensor = aten::sin(%x)
      -> (%s, %u)
    block1():
      %t : Tensor = aten::cos(%x)
      -> (%x, %t)
  return (%a, %b)
)IR");
  EXPECT_TRUE(MayBeUnset(Named(model, "u")));
  EXPECT_FALSE(MayBeUnset(Named(model, "x")));
  EXPECT_FALSE(MayBeUnset(Named(model, "a")));
  EXPECT_TRUE(MayBeUnset(Named(model, "b")));
}

TEST(NodeCost, CountsProductsAndBytes) {
  Weight weight = Parameter("w");
  weight.shape = {8, 3};
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor, %k : Tensor, %i : Tensor):
  %none : NoneType = prim::Constant()
  %zero : int = prim::Constant[value=0]()
  %one : int = prim::Constant[value=1]()
  %p : int[] = prim::ListConstruct(%one, %one)
  %y : Tensor = aten::linear(%x, %w, %none)
  %t : Tensor = aten::transpose(%y, %zero, %one)
  %r : Tensor = aten::relu(%y)
  %c : Tensor = aten::conv2d(%i, %k, %none, %p, %p, %p, %one)
  return (%t, %r, %c)
)IR",
                           {weight});
  model.symbols["s0"] = {2, 10};  // 16 is too many
  model.meta["x"] = {at::kFloat, false, {"2*s0", "3"}, ""};
  model.meta["y"] = model.meta["r"] = {at::kHalf, false, {"2*s0", "8"}, ""};
  model.meta["k"] = {at::kFloat, false, {"4", "5", "3", "3"}, ""};
  model.meta["c"] = {at::kFloat, false, {"2", "4", "6", "7"}, ""};
  EXPECT_EQ(Elements(model, Named(model, "x")), 60);
  EXPECT_EQ(Elements(model, Named(model, "w")), 24);
  EXPECT_EQ(Elements(model, Named(model, "one")), 1);
  EXPECT_EQ(Elements(model, Named(model, "i")), 0);  // not recorded
  EXPECT_EQ(AssumedBytes(model, Named(model, "y")), 2 * 160);
  const NodeCost linear = CostOf(model, Find(model, "aten::linear"));
  EXPECT_EQ(linear.flops, 2. * 20 * 3 * 8);
  EXPECT_GE(linear.bytes, 4 * 60 + 4 * 24 + 2 * 160);
  EXPECT_EQ(linear.Total(), linear.flops + 10 * linear.bytes);
  EXPECT_EQ(CostOf(model, Find(model, "aten::transpose")).Total(), 0);
  EXPECT_EQ(CostOf(model, Find(model, "aten::relu")).flops, 0);
  EXPECT_EQ(CostOf(model, Find(model, "aten::relu")).bytes, 2 * 2 * 160);
  EXPECT_EQ(CostOf(model, Find(model, "aten::conv2d")).flops, 2. * (2 * 4 * 6 * 7) * (5 * 3 * 3));
}

// Two layers in both directions, with the dropout between them as an operation of its own, draw and
// compute the same.
TEST(SplitRnnDropout, ComputesTheSameLayerByLayer) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor, %h : Tensor, %c : Tensor, %a : Tensor, %b : Tensor, %d : Tensor, %e : Tensor):
  %two : int = prim::Constant[value=2]()
  %p : float = prim::Constant[value=0.5]()
  %no : bool = prim::Constant[value=0]()
  %yes : bool = prim::Constant[value=1]()
  %hx : Tensor[] = prim::ListConstruct(%h, %c)
  %w : Tensor[] = prim::ListConstruct(%a, %b, %a, %b, %d, %e, %d, %e)
  %y : Tensor, %hn : Tensor, %cn : Tensor = aten::lstm(%x, %hx, %w, %no, %two, %p, %training, %yes, %no)
  return (%y, %hn, %cn)
)IR");
  const std::vector<c10::IValue> inputs = {true,
                                           at::Device("cpu"),
                                           at::randn({5, 2, 3}),
                                           at::randn({4, 2, 4}),
                                           at::randn({4, 2, 4}),
                                           at::randn({16, 3}),
                                           at::randn({16, 4}),
                                           at::randn({16, 8}),
                                           at::randn({16, 4})};
  auto run = [&] {
    at::manual_seed(9);
    return RunGraph(model.graph, inputs);
  };
  const auto before = run();
  SplitRnnDropout(model);
  model.graph->lint();
  EXPECT_NE(Find(model, "aten::lstm", 1), nullptr);
  EXPECT_EQ(Find(model, "aten::lstm", 2), nullptr);
  EXPECT_NE(Find(model, "aten::dropout"), nullptr);
  EXPECT_EQ(Find(model, "aten::dropout", 1), nullptr);
  const auto after = run();
  ASSERT_EQ(after.size(), 3u);
  for (int i : {0, 1, 2}) EXPECT_TRUE(at::equal(before[i].toTensor(), after[i].toTensor())) << i;
  EXPECT_EQ(model.graph->outputs()[0]->debugName(), "y");
}

TEST(SplitRnnDropout, RefusesPackedSequences) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor, %sizes : Tensor, %h : Tensor, %a : Tensor):
  %two : int = prim::Constant[value=2]()
  %p : float = prim::Constant[value=0.5]()
  %no : bool = prim::Constant[value=0]()
  %w : Tensor[] = prim::ListConstruct(%a, %a, %a, %a)
  %y : Tensor, %hn : Tensor = aten::gru(%x, %sizes, %h, %w, %no, %two, %p, %training, %no)
  return (%y, %hn)
)IR");
  const std::string error = ErrorOf([&] { SplitRnnDropout(model); });
  EXPECT_EQ(error.find("test.pt2: gru, "), 0u) << error;
  EXPECT_NE(
      error.find(": has dropout between its layers and a packed sequence, whose dropout cannot "
                 "be repeated on every rank\n  set dropout=0 and put torch.nn.Dropout between "
                 "single-layer RNNs"),
      std::string::npos)
      << error;
}

TEST(SortByModule, KeepsTheOrderWithinAModuleAndOfWrites) {
  const char text[] = R"IR(
graph(%training : bool, %device : Device, %x : Tensor, %y : Tensor):
  %a : Tensor = aten::sin(%x)
  %b : Tensor = aten::cos(%y)
  %c : Tensor = aten::tanh(%x)
  %d : Tensor = aten::mul(%a, %b)
  %e : Tensor = aten::relu_(%b)
  return (%c, %d, %e)
)IR";
  auto sort = [&](Model& model, std::map<std::string, int> module_of) {
    ModuleAssignment assignment;
    assignment.modules = 2;
    for (torch::jit::Node* node : model.graph->nodes())
      assignment.module_of[node] = module_of.at(node->output()->debugName());
    SortByModule(model, assignment);
    std::string order;
    for (torch::jit::Node* node : model.graph->nodes()) order += node->output()->debugName();
    return order;
  };
  Model model = ParseModel(text);
  EXPECT_EQ(sort(model, {{"a", 1}, {"b", 0}, {"c", 0}, {"d", 1}, {"e", 1}}), "bcade");
  // relu_ would come before what reads its operand.
  model = ParseModel(text);
  const std::string error =
      ErrorOf([&] { sort(model, {{"a", 0}, {"b", 0}, {"c", 0}, {"d", 1}, {"e", 0}}); });
  EXPECT_EQ(error.find("test.pt2: relu_, "), 0u) << error;
  EXPECT_NE(error.find("writes in place, in module 0, to memory that "), std::string::npos)
      << error;
  EXPECT_NE(error.find(" uses in module 1: the order of the two would change\n  put both in one "
                       "module, or use the operation that makes a new tensor"),
            std::string::npos)
      << error;
}

}  // namespace
}  // namespace pipewright
