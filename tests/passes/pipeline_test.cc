#include "passes/pipeline.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>

#include "base/files/read_file.h"
#include "passes/graph/error_context.h"
#include "passes/split/cuts.h"
#include "passes/split/layouts.h"
#include "passes/split/show_writes.h"
#include "tests/passes/model_text.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = TEST_DIR "/golden/ir/";

// A model with something to do for every pass: dead code, constant flags and devices, random
// operations, markers, values that several modules recreate, a write to a received value.
Model Everything() {
  Model model = ParseModel(
      ReadFile(kGolden + "input.ir"),
      {Parameter("wte.weight"), Buffer("bn.running_mean"), Buffer("bn.num_batches_tracked")});
  model.weights[0].names.push_back("head.weight");
  model.meta["n"].expression = "s0";
  model.meta["half"].expression = "(s0//2)";
  for (const char* value : {"r", "s"}) model.meta[value].shape = {"(s0//2)", "16"};
  model.meta["ids"].dtype = model.meta["positions"].dtype = at::kLong;
  for (const char* value : {"ids", "positions"}) model.meta[value].shape = {"s0"};
  return model;
}

std::vector<std::string> Files(const std::string& folder, const std::string& except) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != except) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Checks the text of the graph: every line must follow the one before.
void CheckLines(const std::string& golden, const std::string& text) {
  torch::jit::testing::FileCheck check;
  std::istringstream lines(golden);
  std::string line;
  for (bool first = true; std::getline(lines, line); first = false)
    first ? check.check(line) : check.check_next(line);
  check.run(text);
}

// PIPEWRIGHT_UPDATE_GOLDEN=1 rewrites the files; read the differences before committing them.
TEST(Pipeline, GraphAfterEachPass) {
  std::string dump = testing::TempDir() + "pipewright_passes";
  fs::remove_all(dump);
  Model model = Everything();
  std::vector<ModuleBody> bodies = RunPasses(model, {.split = {}, .shared = {}, .dump = dump});
  EXPECT_EQ(bodies.size(), 3u);
  if (std::getenv("PIPEWRIGHT_UPDATE_GOLDEN")) {
    for (const std::string& name : Files(kGolden, "input.ir")) fs::remove(kGolden + name);
    for (const std::string& name : Files(dump, "00_import.ir"))
      fs::copy_file(dump + "/" + name, kGolden + name);
  }
  std::vector<std::string> files = Files(dump, "00_import.ir");
  EXPECT_EQ(files, Files(kGolden, "input.ir"));
  for (const std::string& name : files) {
    std::string text = ReadFile(dump + "/" + name);
    SCOPED_TRACE(name);
    EXPECT_NO_THROW(CheckLines(ReadFile(kGolden + name), text)) << text;
    EXPECT_EQ(ReadFile(kGolden + name), text);
    // The dump can be parsed again, except for nodes without outputs, which torch prints wrongly.
    if (text.find("pippy") != std::string::npos) continue;
    torch::jit::Graph again;
    EXPECT_NO_THROW(torch::jit::parseIR(text, &again)) << text;
  }
}

// An invalid model: it contains `line`, in submodule "b" at model.py:31.
Model Broken(const std::string& line) {
  Model model = ParseModel("graph(%training : bool, %device : Device, %x : Tensor):\n" +
                           ("  %n : int = prim::Constant[value=1]()\n  %s : int[] = "
                            "prim::ListConstruct(%n)\n  %a : Tensor = aten::relu(%x)\n  " +
                            line) +
                           "\n  %d : Tensor = aten::as_strided(%a, %s, %s, %n)\n  return (%d)\n");
  for (torch::jit::Node* node : model.graph->nodes()) {
    if (node->kind() == c10::aten::relu || node->kind().is_prim()) continue;
    const bool last = node->kind() == c10::Symbol::aten("as_strided");
    const std::string code = last ? "y.as_strided(s)" : "self.b(y)";
    auto source = std::make_shared<torch::jit::Source>(code, "model.py", last ? 32 : 31);
    node->setSourceRange(torch::jit::SourceRange(source, 0, code.size()));
    node->setScope(c10::make_intrusive<torch::jit::Scope>()->push(c10::Symbol::scope("b")));
  }
  return model;
}

// Returns the operation that the message names if `f` throws an unexpected exception.
std::string NamedBy(const std::function<void()>& f) {
  ErrorContext::Take();
  EXPECT_ANY_THROW(f());
  return ErrorContext::Take();
}

TEST(Pipeline, CutsAndLayoutsAndWritesNameTheOperationThatTheyFailAt) {
  Model model = Broken("aten::set_grad_enabled()");
  std::vector<std::string> warnings;
  for (const char* split : {"equal:2", "balanced:2", "size:1MB"})
    EXPECT_EQ(NamedBy([&] { CutsByCost(model, ParseSplit(split), warnings); }),
              "aten::set_grad_enabled, submodule \"b\", model.py:31")
        << split;
  EXPECT_EQ(NamedBy([&] { CutsBetweenSubmodules(model, {}); }),
            "aten::set_grad_enabled, submodule \"b\", model.py:31");
  model = Broken("%b : Tensor = aten::contiguous()");
  model.graph->return_node()->input()->node()->replaceInput(
      0, Find(model, "aten::contiguous")->output());
  EXPECT_EQ(NamedBy([&] { CheckLayouts(model, {}); }),
            "aten::contiguous, submodule \"b\", model.py:31");
  model = Broken("%b : Tensor = aten::add_(%a, %a, %n)");
  ModuleAssignment assignment;
  for (const torch::jit::Node* node : model.graph->nodes()) {
    if (node->kind() == c10::Symbol::aten("add_")) break;
    assignment.module_of[node] = 0;
  }
  EXPECT_EQ(NamedBy([&] { ShowWrites(model, assignment); }),
            "aten::add_, submodule \"b\", model.py:31");
}

}  // namespace
}  // namespace pipewright
