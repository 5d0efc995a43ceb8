// Checks of modules before a run: of edited code, of weights, and trial runs.
#define PIPEWRIGHT_TORCH  // check_code.h
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <thread>

#include "formats/weights/checkpoint.h"
#include "runtime/module/stored_weights.h"
#include "runtime/module/table_uses.h"
#include "runtime/module/written_weights.h"
#include "runtime/trial/check_code.h"
#include "runtime/trial/lost_gradients.h"
#include "runtime/trial/quiet_prints.h"
#include "runtime/trial/traced_sizes.h"
#include "runtime/trial/trial.h"
#include "runtime/trial/written_buffers.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

// The package with other code in one module: `text` instead of its last line's expression.
std::string Edited(const std::string& name, int module, const std::string& text) {
  const std::string package = SmallPackage(name);
  std::string code = module ? kShiftCode : kScaleCode;
  code.erase(code.find("    return "));
  WriteFile(package + "/modules/module" + std::to_string(module) + ".py", code + text + "\n");
  return package;
}

std::vector<TensorSpec> Rows(int64_t rows) { return {{at::kFloat, {rows, 3}, true}}; }

// Sizes that were traced are numbers in the code; the package records none.
TEST(TracedSizes, AreThoseThatMixSamples) {
  Manifest manifest = SmallManifest();
  for (ValueInfo& value : manifest.values) value.dtype.clear(), value.shape.clear();
  const std::string mixed = Edited(
      "traced.pkg", 0, "    return torch.view(torch.view(torch.mul(x, scale), [2, -1]), [-1, 3])");
  EXPECT_EQ(FindTracedSizes(mixed, manifest, Rows(4)),
            mixed +
                "/modules/module0.py:9: view to [2, -1] mixes the 4 samples of a microbatch: if "
                "2 is the batch size that the model was traced with, feed that one, or trace it "
                "again with x.size(0) left as it is");
  EXPECT_EQ(FindTracedSizes(mixed, manifest, Rows(2)), "");
  EXPECT_EQ(FindTracedSizes(mixed, SmallManifest(), Rows(4)), "");  // recorded sizes
  const std::string one =
      Edited("one.pkg", 0, "    return torch.view(torch.mul(x, scale), [4, 3])");
  EXPECT_EQ(FindTracedSizes(one, manifest, Rows(4)), "");  // takes nothing else
  const std::string all =
      Edited("rows.pkg", 0, "    return torch.view(torch.mul(x, scale), [-1, 3])");
  EXPECT_EQ(FindTracedSizes(all, manifest, Rows(4)), "");
  EXPECT_EQ(LineOfCode(), "");
}

TEST(CheckCode, CompilesAndRunsWhatWasEdited) {
  EXPECT_TRUE(CheckCode(SmallPackage("unedited.pkg"), SmallManifest()).empty());
  const std::string wrong = Edited("wrong.pkg", 1, "    return torch.addd(y, shift)");
  EXPECT_NE(ErrorOf([&] { CheckCode(wrong, SmallManifest()); }).find("module1.py\", line 9"),
            std::string::npos);
  const std::string changed =
      Edited("changed.pkg", 1, "    return torch.sum(torch.add(y, shift), [1])");
  const std::vector<std::string> warnings = CheckCode(changed, SmallManifest());
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].substr(0, warnings[0].find('\n')),
            changed +
                "/modules/module1.py:9: returns z float32 [2], manifest.json says float32 "
                "[s0, 3]");
}

TEST(LostGradients, NamesModulesWeightsAndTheLine) {
  auto lost = [](const std::string& package) {
    return LostGradients(package, SmallManifest(), Rows(2), {2});
  };
  EXPECT_TRUE(lost(SmallPackage("kept.pkg")).empty());
  EXPECT_TRUE(lost(Edited("fine.pkg", 1, "    return torch.sub(y, shift)")).empty());
  const std::string input =
      Edited("input.pkg", 1, "    cut = torch.detach(y)\n    return torch.add(cut, shift)");
  EXPECT_EQ(lost(input), std::vector<std::string>{"module 0 gets no gradient any more: " + input +
                                                  "/modules/module1.py:9: cut = torch.detach(y)"});
  const std::string weight =
      Edited("weight.pkg", 1, "    return torch.add(y, torch.detach(shift))");
  EXPECT_EQ(lost(weight), std::vector<std::string>{
                              "module 1 gets no gradient any more: " + weight +
                              "/modules/module1.py:9: return torch.add(y, torch.detach(shift))"});
  const std::string both = Edited("both.pkg", 1, "    return torch.detach(torch.add(y, shift))");
  ASSERT_EQ(lost(both).size(), 1u);
  EXPECT_EQ(lost(both)[0].find("modules 0-1 get no gradient any more: "), 0u) << lost(both)[0];
}

TEST(QuietPrints, SilencesItsThreadOnly) {
  const LoadedModule module =
      LoadModule(Edited("print.pkg", 0, "    print(\"here\")\n    return torch.mul(x, scale)"),
                 SmallManifest(), 0);
  auto printed = [&](const std::function<void()>& act) {
    testing::internal::CaptureStdout();
    act();
    return testing::internal::GetCapturedStdout();
  };
  auto run = [&] { pipewright::Run(module, {at::ones({2, 3})}); };
  EXPECT_EQ(printed(run), "here\n");
  {
    const QuietPrints quiet;
    EXPECT_EQ(printed(run), "");
    {
      const QuietPrints nested;
    }
    EXPECT_EQ(printed(run), "");
    EXPECT_EQ(printed([&] { std::thread(run).join(); }), "here\n");
  }
  EXPECT_EQ(printed(run), "here\n");
}

TEST(StoredWeights, AreFoundUnderAnyName) {
  Manifest manifest = SmallManifest();
  manifest.modules[1].held.push_back({"tied.weight", WeightKind::kParameter, "float32", {1}, true, true});
  manifest.modules[1].held.push_back({"table", WeightKind::kConstant, "float32", {1}});
  manifest.tied = {{"first.weight", "tied.weight"}};
  EXPECT_EQ(KeptName(manifest, "tied.weight"), "first.weight");
  EXPECT_EQ(KeptName(manifest, "shift"), "shift");
  const auto all = ParametersAndBuffers(manifest);
  ASSERT_EQ(all.size(), 3u);  // the constant is code
  EXPECT_EQ(std::pair(all.at("first.weight").module, all.at("first.weight").index),
            std::pair(1, size_t{1}));
  const std::string file = TempPath("stored.safetensors");
  WriteSafetensors(
      file, {{"first.weight", "F32", {1}, {"abcd", 4}}, {"shift", "F16", {3}, {"abcdef", 6}}});
  const Checkpoint checkpoint = OpenCheckpoint(file);
  auto error = [&](const WeightInfo& weight) {
    return ErrorOf([&] { StoredWeight(checkpoint, manifest, weight); });
  };
  EXPECT_EQ(StoredWeight(checkpoint, manifest, manifest.modules[1].held[1]).name, "first.weight");
  EXPECT_EQ(error(manifest.modules[1].held[0]),
            file +
                ": \"shift\" is F16 [3], the package's is float32 [3]\n  weights are not cast: "
                "save them as float32");
  EXPECT_EQ(error({"shiff", WeightKind::kParameter, "float32", {3}}),
            file +
                ": no tensor \"shiff\" (did you mean \"shift\"?)\n  it is of another model, or "
                "names differ: pipewright weights list " +
                file);
  EXPECT_EQ(ForeignNames(manifest, {"other", "first.weight", "table", "x"}),
            (std::vector<std::string>{"other", "x"}));
  EXPECT_EQ(DescribeForeign("F", {"other", "x"}),
            "F: 2 tensors that the package does not have, such "
            "as \"other\": perhaps it is another model's");
}

TEST(TableUses, AreInputsThatAnEmbeddingTakesDirectly) {
  auto uses = [](const std::string& index) {
    const LoadedModule module =
        LoadModule(Edited("table.pkg", 0, "    return torch.embedding(scale, " + index + ")"),
                   SmallManifest(), 0);
    return TableUses(*module.graph);
  };
  ASSERT_EQ(uses("x").size(), 1u);
  EXPECT_EQ(uses("x")[0].input, 1u);
  EXPECT_EQ(uses("x")[0].table, "scale");
  EXPECT_TRUE(uses("torch.add(x, 1)").empty());
}

TEST(WrittenParameters, WithAndWithoutAutogradSeeingIt) {
  // A package would refuse such a module if it trains the parameter.
  auto written = [](const std::string& text) {
    torch::jit::Module script("m");
    script.register_parameter("scale", at::ones({3}), false);
    script.define("def forward(self, x):\n" + text + "\n  return x * y\n");
    auto graph = script.get_method("forward").graph()->copy();
    torch::jit::Inline(*graph);
    std::vector<std::pair<std::string, bool>> found;
    for (const WrittenWeight& one :
         WrittenWeights(*graph, SmallManifest().modules[0], WeightKind::kParameter)) {
      EXPECT_EQ(std::string(one.node->kind().toUnqualString()), "clamp_");
      found.emplace_back(one.name, one.unseen);
    }
    return found;
  };
  using Found = std::vector<std::pair<std::string, bool>>;
  EXPECT_EQ(written("  y = x * self.scale"), Found{});
  EXPECT_EQ(written("  y = (self.scale * 2).clamp_(-1, 1)"), Found{});
  EXPECT_EQ(written("  y = self.scale.clamp_(-1, 1)"), (Found{{"scale", false}}));
  EXPECT_EQ(written("  y = self.scale[1:].clamp_(-1, 1)"), (Found{{"scale", false}}));
  EXPECT_EQ(written("  y = self.scale.data.clamp_(-1, 1)"), (Found{{"scale", true}}));
}

// A table is only read. A count is the sum of what replicas count, unless the code reads it.
TEST(WrittenBuffers, AreThoseThatForwardWrites) {
  using Found = std::vector<std::pair<std::string, bool>>;
  const auto written = [](const std::string& text, BufferMerge merge) {
    const std::string package = SmallPackage("buffers.pkg");
    std::string code = kScaleCode;
    code.erase(code.find("    scale = self.scale"));
    code.replace(code.find("__buffers__ = []"), 16, "__buffers__ = [\"b\", ]\n  b : Tensor");
    WriteFile(package + "/modules/module0.py",
              code + "    b = self.b\n" + text + "    return torch.mul(x, self.scale)\n");
    Manifest manifest = SmallManifest();
    WeightInfo buffer = manifest.modules[0].held[0];
    buffer.name = "b", buffer.kind = WeightKind::kBuffer, buffer.requires_grad = false;
    buffer.merge = merge;
    manifest.modules[0].held.push_back(buffer);
    Found found;
    for (const WrittenBuffer& one : WrittenBuffers(package, manifest))
      found.emplace_back(one.name, one.merges);
    return found;
  };
  EXPECT_EQ(written("    x = torch.mul(x, b)\n", BufferMerge::kMean), Found{});
  EXPECT_EQ(written("    c = torch.mul_(b, 0.9)\n", BufferMerge::kMean), (Found{{"b", false}}));
  EXPECT_EQ(written("    c = torch.add_(b, 1)\n", BufferMerge::kMean), (Found{{"b", false}}));
  EXPECT_EQ(written("    c = torch.add_(b, 1)\n", BufferMerge::kSum), (Found{{"b", true}}));
  EXPECT_EQ(written("    c = torch.add_(b, 1)\n    x = torch.mul(x, c)\n", BufferMerge::kSum),
            (Found{{"b", false}}));
  EXPECT_EQ(written("    c = torch.batch_norm(x, None, None, b, None, True, 0.1, 1e-05, False)\n",
                    BufferMerge::kUpdates),
            (Found{{"b", true}}));
}

TEST(Trial, RunsOnMadeUpNumbersOrSamplesAndSaysWhatFails) {
  const at::Tensor square =
      MadeUp({at::kDouble, {2, 4, 4}, true}, at::detail::createCPUGenerator(1));
  EXPECT_TRUE(at::equal(square, square.mT()));
  EXPECT_GT(at::linalg_eigvalsh(square).min().item<double>(), 0);
  const at::Tensor wide = MadeUp({at::kHalf, {5, 7}, true}, at::detail::createCPUGenerator(1));
  EXPECT_EQ(wide.scalar_type(), at::kHalf);
  EXPECT_TRUE(wide.ge(0).all().item<bool>() && wide.le(1).all().item<bool>());

  const std::string package =
      Edited("trial.pkg", 1, "    return torch.add(y, torch.reshape(shift, [5]))");
  const Manifest manifest = SmallManifest();
  std::vector<TensorSpec> specs = {Rows(2)[0], {}, {}};
  Trial trial = RealTrial(package, manifest, specs);
  EXPECT_EQ(trial.on, "made-up numbers");
  const at::Tensor x = trial.values.at(0).toTensor().clone();
  Try(trial, 0, specs, true, false, "");
  EXPECT_EQ(specs[1].sizes, (std::vector<int64_t>{2, 3}));
  EXPECT_TRUE(at::equal(trial.values.at(1).toTensor(), x * at::tensor({1.f, 2.f, 3.f})));
  EXPECT_EQ(trial.values.count(0), 0u);  // no module needs it any more
  try {
    Try(trial, 1, specs, true, true, "BLAME");
    FAIL() << "accepted";
  } catch (const TrialError& e) {
    EXPECT_EQ(e.module, 1);
    EXPECT_EQ(std::string(e.what()).find("BLAME\n" + package +
                                         "/modules/module1.py: fails on made-up "
                                         "numbers of the sizes y [2, 3]\n"),
              0u)
        << e.what();
  }
  // Samples are repeated up to the sizes of the run.
  const float rows[3] = {7, 8, 9};
  WriteSafetensors(package + "/samples.safetensors",
                   {{"x", "F32", {1, 3}, {reinterpret_cast<const char*>(rows), 12}}});
  EXPECT_TRUE(at::equal(RealTrial(package, manifest, specs).values.at(0).toTensor(),
                        at::tensor({7.f, 8.f, 9.f}).expand({2, 3})));
}

TEST(Trial, ObservesEditedModulesOnly) {
  const std::string package = Edited("observed.pkg", 1, "    return torch.sub(y, shift)");
  std::vector<int> seen;
  InferShapesAndObserve(
      package, SmallManifest(), Rows(2),
      [&](LoadedModule& module, const std::vector<c10::IValue>& inputs) {
        seen.push_back(module.index);
        EXPECT_EQ(inputs[0].toTensor().sizes().vec(), (std::vector<int64_t>{2, 3}));
      });
  EXPECT_EQ(seen, std::vector<int>{1});
}

}  // namespace
}  // namespace pipewright
