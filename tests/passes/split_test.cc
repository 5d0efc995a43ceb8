#include "passes/split/split.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "compiler/trace.h"
#include "passes/graph/gradients.h"
#include "passes/split/bodies.h"
#include "passes/split/isolate_writes.h"
#include "passes/split/localize.h"
#include "passes/split/transmit.h"
#include "tests/error_text.h"
#include "tests/passes/model_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

std::vector<int> ModulesOf(const Model& model, const ModuleAssignment& assignment,
                           const char* kind) {
  std::vector<int> modules;
  for (const torch::jit::Node* node : model.graph->nodes())
    if (node->kind().toQualString() == std::string(kind))
      modules.push_back(assignment.module_of.at(node));
  return modules;
}

TEST(ParseSplit, Forms) {
  EXPECT_EQ(ParseSplit("markers").kind, SplitSpec::kMarkers);
  EXPECT_EQ(ParseSplit("equal:12").count, 12);
  EXPECT_EQ(ParseSplit("modules:a.b,c@1").before, (std::vector<std::string>{"a.b", "c@1"}));
  for (const char* wrong : {"", "equal", "equal:", "equal:0", "equal:2x",
                            "modules:", "modules:a,,b", "markers:2", "Equal:2"})
    EXPECT_THROW(ParseSplit(wrong), UsageError) << wrong;
}

constexpr const char* kMarked = R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  pippy::_pipe_split()
  %a : Tensor = aten::relu(%x)
  pippy::_pipe_split()
  pippy::_pipe_split()
  %b : Tensor = aten::relu(%a)
  %c : Tensor = aten::relu(%b)
  pippy::_pipe_split()
  return (%c)
)IR";

TEST(AssignModules, MarkersCutAndGoAway) {
  Model model = ParseModel(kMarked);
  ModuleAssignment assignment = AssignModules(model, {});
  EXPECT_EQ(assignment.modules, 2);
  EXPECT_EQ(ModulesOf(model, assignment, "aten::relu"), (std::vector<int>{0, 1, 1}));
  Expect().check_not("pippy")->run(*model.graph);
}

TEST(AssignModules, OtherSplitsIgnoreMarkers) {
  Model model = ParseModel(kMarked);
  ModuleAssignment assignment = AssignModules(model, ParseSplit("equal:3"));
  EXPECT_EQ(assignment.modules, 3);
  EXPECT_EQ(ModulesOf(model, assignment, "aten::relu"), (std::vector<int>{0, 1, 2}));
  Expect().check_not("pippy")->run(*model.graph);
}

TEST(AssignModules, EqualCutsWhereFewestValuesCross) {
  // Six operations; in the middle two values are alive, one operation earlier only one.
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %one : int = prim::Constant[value=1]()
  %a : Tensor = aten::relu(%x)
  %b : Tensor = aten::relu(%a)
  %c : Tensor = aten::relu(%b)
  %d : Tensor = aten::add(%c, %b, %one)
  %e : Tensor = aten::relu(%d)
  %f : Tensor = aten::relu(%e)
  return (%f)
)IR");
  ModuleAssignment assignment = AssignModules(model, ParseSplit("equal:2"));
  EXPECT_EQ(ModulesOf(model, assignment, "aten::relu"), (std::vector<int>{0, 0, 1, 1, 1}));
}

const char kFourInARow[] = R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %a : Tensor = aten::relu(%x)
  %b : Tensor = aten::relu(%a)
  %c : Tensor = aten::relu(%b)
  %d : Tensor = aten::relu(%c)
  return (%d)
)IR";

// A ModuleList is never called: its children are at the same depth as those of the model.
TEST(AssignModules, DepthIsOfCallsNotOfNames) {
  for (auto [depth, modules] : {std::pair{1, 2}, {2, 4}, {0, 4}}) {
    Model model = ParseModel(kFourInARow);
    auto root = c10::make_intrusive<torch::jit::Scope>();
    for (int i = 0; i < 4; ++i) {
      const std::string block = "blocks." + std::to_string(i / 2);
      auto called = root->push(c10::Symbol::scope(block));
      Find(model, "aten::relu", i)
          ->setScope(called->push(c10::Symbol::scope(block + ".act" + std::to_string(i % 2))));
    }
    SplitSpec split;
    split.kind = SplitSpec::kFine;
    split.depth = depth;
    EXPECT_EQ(AssignModules(model, split).modules, modules) << depth;
  }
}

TEST(AssignModules, NeverInsideANoGradRegion) {
  const char* kText = R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %off : bool = prim::Constant[value=0]()
  %on : bool = prim::Constant[value=1]()
  %a : Tensor = aten::relu(%x)
  aten::set_grad_enabled(%off)
  %b : Tensor = aten::relu(%a)
  pippy::_pipe_split()
  %c : Tensor = aten::relu(%b)
  aten::set_grad_enabled(%on)
  %d : Tensor = aten::relu(%c)
  return (%d)
)IR";
  Model marked = ParseModel(kText);
  EXPECT_NE(ErrorOf([&] { AssignModules(marked, {}); }).find("inside a torch.no_grad() region"),
            std::string::npos);
  Model even = ParseModel(kText);
  ModuleAssignment assignment = AssignModules(even, ParseSplit("equal:2"));
  std::vector<int> modules = ModulesOf(even, assignment, "aten::relu");
  EXPECT_EQ(modules[1], modules[2]);
}

TEST(AssignModules, NeverInsideVmap) {
  const char* kText = R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %zero : int = prim::Constant[value=0]()
  %three : int = prim::Constant[value=3]()
  %how : str = prim::Constant[value="error"]()
  %a : Tensor = aten::relu(%x)
  pipewright::vmap_enter(%three, %how)
  %b : Tensor = pipewright::vmap_in(%a, %zero)
  pippy::_pipe_split()
  %c : Tensor = aten::relu(%b)
  %d : Tensor = pipewright::vmap_out(%c, %three, %zero)
  pipewright::vmap_exit()
  return (%d)
)IR";
  Model marked = ParseModel(kText);
  EXPECT_NE(ErrorOf([&] { AssignModules(marked, {}); }).find("lies inside torch.vmap"),
            std::string::npos);
  Model even = ParseModel(kText);
  EXPECT_NE(ErrorOf([&] { AssignModules(even, ParseSplit("equal:3")); }).find("enough places"),
            std::string::npos);
}

TEST(TransmitShared, AWeightOfTwoModulesLivesInTheFirst) {
  const char* kText = R"IR(
graph(%w : Tensor, %v : Tensor, %training : bool, %device : Device, %x : Tensor):
  %a : Tensor = aten::mm(%x, %w)
  pippy::_pipe_split()
  %b : Tensor = aten::mm(%a, %v)
  %c : Tensor = aten::mm(%b, %w)
  return (%c)
)IR";
  Model model = ParseModel(kText, {Parameter("w"), Parameter("v")});
  ModuleAssignment assignment = AssignModules(model, {});
  TransmitShared(model, assignment, ParseShared("transmit"));
  Expect()
      .check("%w_sent : Tensor = aten::alias(%w)")
      ->check("aten::mm(%a, %v)")
      ->check("aten::mm(%b, %w_sent)")
      ->run(*model.graph);
  EXPECT_EQ(ModulesOf(model, assignment, "aten::alias"), (std::vector<int>{0}));
  // A weight that a single module uses stays as it is; unknown ones are refused.
  Model other = ParseModel(kText, {Parameter("w"), Parameter("v")});
  ModuleAssignment placed = AssignModules(other, {});
  TransmitShared(other, placed, ParseShared("transmit:v"));
  Expect().check_not("aten::alias")->run(*other.graph);
  EXPECT_NE(ErrorOf([&] {
              TransmitShared(other, placed, ParseShared("transmit:vv"));
            }).find("no weight \"vv\""),
            std::string::npos);
}

TEST(TransmitShared, AWeightThatIsWrittenIsRefused) {
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor):
  %a : Tensor = aten::mm(%x, %w)
  %n : Tensor = aten::relu_(%w)
  pippy::_pipe_split()
  %c : Tensor = aten::mm(%a, %w)
  return (%c)
)IR",
                           {Parameter("w")});
  ModuleAssignment assignment = AssignModules(model, {});
  EXPECT_NE(ErrorOf([&] {
              TransmitShared(model, assignment, ParseShared("transmit"));
            }).find("--shared replicate"),
            std::string::npos);
}

void SetScopes(Model& model, const std::vector<std::string>& paths) {
  auto root = c10::make_intrusive<torch::jit::Scope>();
  size_t i = 0;
  for (torch::jit::Node* node : model.graph->nodes())
    if (node->kind() != torch::jit::prim::Constant)
      node->setScope(root->push(c10::Symbol::scope(paths.at(i++))));
  model.submodules = paths;
}

TEST(AssignModules, BeforeSubmodules) {
  Model model = ParseModel(kFourInARow);
  SetScopes(model, {"blocks.1", "blocks.10.fc", "blocks.1@1", "head"});
  ModuleAssignment assignment = AssignModules(model, ParseSplit("modules:blocks.10,blocks.1@1"));
  EXPECT_EQ(ModulesOf(model, assignment, "aten::relu"), (std::vector<int>{0, 1, 2, 2}));
  Model other = ParseModel(kFourInARow);
  SetScopes(other, {"blocks.1", "blocks.10.fc", "blocks.1@1", "head"});
  EXPECT_EQ(ErrorOf([&] { AssignModules(other, ParseSplit("modules:haed")); }),
            "--split modules:haed: there is no submodule \"haed\" (did you mean \"head\"?)\n  "
            "submodules: blocks.1, blocks.10.fc, blocks.1@1, head");
}

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    torch::Tensor y = torch::relu(a(x));
    pipe_split();  // a callback does without
    return b(y).view({-1, 2}) + y.sum();
  }
  torch::nn::Linear a = register_module("a", torch::nn::Linear(4, 4));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Net);

TEST(AssignModules, ACallbackPlacesWhatATraceRecorded) {
  Net net;
  CompileOptions options;
  options.output = TempPath("callback.pkg");
  options.passes.split.kind = SplitSpec::kFunction;
  options.passes.split.function = [](const torch::jit::Node* node) {
    std::vector<std::string> stack = ModuleStack(node);
    return stack.empty() ? -1 : stack.back() == "a" ? 0 : 2;
  };
  Model model = Trace(net, {torch::ones({2, 4})}, {{"x"}});
  Compiled compiled = Compile(model, options);
  ASSERT_EQ(compiled.manifest.modules.size(), 2u);
  EXPECT_EQ(compiled.assigned, (std::vector<int>{0, 2}));
  EXPECT_EQ(compiled.manifest.modules[0].covers, std::vector<std::string>{"a"});
  EXPECT_EQ(compiled.manifest.modules[1].covers, std::vector<std::string>{"b"});
  EXPECT_NE(compiled.explanation.find("the split callback"), std::string::npos);

  options.passes.split.function = [](const torch::jit::Node* node) {
    std::vector<std::string> stack = ModuleStack(node);
    return !stack.empty() && stack.back() == "b" ? 0 : 1;
  };
  model = Trace(net, {torch::ones({2, 4})});
  EXPECT_NE(ErrorOf([&] { Compile(model, options); }).find("the split callback"),
            std::string::npos);
}

TEST(AssignModules, WhatACallbackThrowsIsToldWithTheOperation) {
  Net net;
  CompileOptions options;
  options.output = TempPath("thrown.pkg");
  options.passes.split.kind = SplitSpec::kFunction;
  options.passes.split.function = [](const torch::jit::Node* node) -> int {
    const std::vector<std::string> stack = ModuleStack(node);
    if (!stack.empty() && stack.back() == "b") throw std::out_of_range("map::at");
    return 0;
  };
  Model model = Trace(net, {torch::ones({2, 4})}, {{"x"}});
  const std::string told = ErrorOf([&] { Compile(model, options); });
  EXPECT_NE(told.find("submodule \"b\""), std::string::npos) << told;
  EXPECT_NE(told.find("pass assign_modules fails: map::at"), std::string::npos) << told;
  EXPECT_NE(told.find("write that line with other operations"), std::string::npos) << told;
}

TEST(Localize, ConstantsListsAndSizesAreMadeWhereTheyAreUsed) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %zero : int = prim::Constant[value=0]()
  %two : int = prim::Constant[value=2]()
  %n : int = aten::size(%x, %zero)
  %h : int = aten::floordiv(%n, %two)
  %s : int[] = prim::ListConstruct(%h, %two)
  %a : Tensor = aten::reshape(%x, %s)
  pippy::_pipe_split()
  %b : Tensor = aten::reshape(%a, %s)
  return (%b)
)IR");
  model.meta["n"].expression = "s0";
  model.meta["a"].shape = {"4", "s0"};
  ModuleAssignment assignment = AssignModules(model, {});
  Localize(model, assignment);
  model.graph->lint();
  Expect()
      .check("aten::reshape(%x, ")
      ->check("aten::size(%a, ")
      ->check("aten::floordiv(")
      ->check("prim::ListConstruct(")
      ->check("aten::reshape(%a, ")
      ->run(*model.graph);
  std::vector<ModuleBody> bodies = CollectBodies(model, assignment);
  ASSERT_EQ(bodies.size(), 2u);
  ASSERT_EQ(bodies[1].inputs.size(), 1u);
  EXPECT_EQ(bodies[1].inputs[0]->debugName(), "a");
}

TEST(Localize, AnIntegerThatOnlyItsProducerKnowsCrosses) {
  Model model = ParseModel(R"IR(
graph(%training : bool, %device : Device, %x : Tensor):
  %one : int = prim::Constant[value=1]()
  %n : int = aten::Int(%x)
  %m : int = aten::add(%n, %one)
  %a : Tensor = aten::relu(%x)
  pippy::_pipe_split()
  %b : Tensor = aten::mul(%a, %m)
  return (%b)
)IR");
  ModuleAssignment assignment = AssignModules(model, {});
  Localize(model, assignment);
  std::vector<ModuleBody> bodies = CollectBodies(model, assignment);
  ASSERT_EQ(bodies[1].inputs.size(), 2u);
  EXPECT_EQ(bodies[1].inputs[0]->debugName(), "a");
  EXPECT_EQ(bodies[1].inputs[1]->debugName(), "m");
}

TEST(Gradients, FollowParametersThroughDifferentiableOperations) {
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %f : Tensor, %training : bool, %device : Device, %x : Tensor):
  %off : bool = prim::Constant[value=0]()
  %on : bool = prim::Constant[value=1]()
  %a : Tensor = aten::mul(%x, %f)
  %b : Tensor = aten::mul(%a, %w)
  %c : Tensor = aten::detach(%b)
  aten::set_grad_enabled(%off)
  %d : Tensor = aten::relu(%b)
  aten::set_grad_enabled(%on)
  %e : Tensor = aten::relu(%b)
  %g : Tensor = aten::gt(%e, %d)
  return (%c, %d, %e, %g)
)IR",
                           {Parameter("w"), Buffer("f")});
  model.meta["g"].dtype = at::kBool;
  auto with = ValuesWithGradient(model);
  std::string names;
  for (torch::jit::Node* node : model.graph->nodes())
    for (torch::jit::Value* output : node->outputs())
      if (with.count(output)) names += output->debugName();
  EXPECT_EQ(names, "be");
}

TEST(Gradients, DoNotReachDetachedTensorsThroughTheirMemory) {
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor):
  %zero : int = prim::Constant[value=0]()
  %off : bool = prim::Constant[value=0]()
  %a : Tensor = aten::mul(%x, %w)
  %b : Tensor = aten::detach(%a)
  %c : Tensor = aten::tanh_(%b)
  %part : Tensor = aten::select(%a, %zero, %zero)
  %done : Tensor = aten::copy_(%part, %part, %off)
  %d : Tensor = aten::relu(%c)
  %e : Tensor = aten::relu(%a)
  return (%d, %e)
)IR",
                           {Parameter("w")});
  auto with = ValuesWithGradient(model);
  std::string names;
  for (torch::jit::Node* node : model.graph->nodes())
    for (torch::jit::Value* output : node->outputs())
      if (with.count(output)) names += output->debugName() + " ";
  EXPECT_EQ(names, "a part done e ");
}

TEST(Gradients, ReachWhatIsWrittenInto) {
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor):
  %zero : int = prim::Constant[value=0]()
  %off : bool = prim::Constant[value=0]()
  %on : bool = prim::Constant[value=1]()
  %two : int = prim::Constant[value=2]()
  %a : Tensor = aten::mm(%x, %w)
  %base : Tensor = aten::zeros_like(%x)
  %part : Tensor = aten::select(%base, %zero, %zero)
  %done : Tensor = aten::copy_(%part, %a, %off)
  %other : Tensor = aten::zeros_like(%x)
  %same : Tensor = aten::add_(%other, %x, %two)
  %list : Tensor[] = prim::ListConstruct()
  prim::Loop(%two, %on)
    block0(%i : int):
      %s : Tensor = aten::select(%a, %zero, %i)
      %n : Tensor[] = aten::append(%list, %s)
      -> (%on)
  %all : Tensor = aten::stack(%list, %zero)
  return (%base, %other, %all)
)IR",
                           {Parameter("w")});
  auto with = ValuesWithGradient(model);
  std::vector<bool> found;
  for (const torch::jit::Value* output : model.graph->outputs())
    found.push_back(with.count(output));
  EXPECT_EQ(found, (std::vector<bool>{true, false, true}));
}

TEST(Bodies, UnusedModulesGoAndTiedWeightsTakeTheLocalName) {
  Weight tied = Parameter("wte.weight");
  tied.names.push_back("head.weight");
  Model model = ParseModel(R"IR(
graph(%w : Tensor, %training : bool, %device : Device, %x : Tensor):
  %a : Tensor = aten::mul(%x, %w)
  pippy::_pipe_split()
  %dead : Tensor = aten::relu(%a)
  pippy::_pipe_split()
  %b : Tensor = aten::mul(%a, %w)
  return (%b)
)IR",
                           {tied});
  ModuleAssignment assignment = AssignModules(model, {});
  SetScopes(model, {"wte", "nothing", "head"});
  std::vector<ModuleBody> bodies = CollectBodies(model, assignment);
  ASSERT_EQ(bodies.size(), 2u);
  EXPECT_EQ(bodies[0].weights[0].second, "wte.weight");
  EXPECT_EQ(bodies[1].weights[0].second, "head.weight");
  EXPECT_EQ(bodies[1].covers, std::vector<std::string>{"head"});
}

TEST(Identifiers, ArePrintedAsTheyAre) {
  EXPECT_EQ(Identifier("blocks.0.fc"), "blocks_0_fc");
  EXPECT_EQ(Identifier("0"), "v0");
  EXPECT_EQ(Identifier("_0"), "v_0");
  EXPECT_EQ(Identifier("lambda"), "lambda_");
  EXPECT_EQ(Identifier("torch"), "torch_");
}

}  // namespace
}  // namespace pipewright
