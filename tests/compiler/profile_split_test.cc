// Finds cuts by measuring a model whose costs are plain: one submodule computes nearly everything.
#include "compiler/measured/profile_split.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "compiler/measured/pieces.h"
#include "formats/weights/safetensors.h"
#include "tests/error_text.h"
#include "tests/passes/model_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

// Submodules a, b.c, b.d and e, one operation each: the one numbered `large` multiplies large
// matrices.
Model FourSubmodules(int large, bool sizes = true) {
  Weight weight = Parameter("w");
  weight.shape = {600, 600}, weight.strides = {600, 1};
  weight.data = at::full({600, 600}, 1. / 600);
  std::string text = "graph(%w : Tensor, %training : bool, %device : Device, %v0 : Tensor):\n";
  for (int i = 0; i < 4; ++i) {
    const std::string in = "%v" + std::to_string(i);
    text += "  %v" + std::to_string(i + 1) +
            " : Tensor = aten::" + (i == large ? "mm(" + in + ", %w)\n" : "relu(" + in + ")\n");
  }
  Model model = ParseModel(text + "  return (%v4)\n", {weight});
  model.submodules = {"a", "b", "b.c", "b.d", "e"};
  const std::vector<std::vector<std::string>> stacks = {{"a"}, {"b", "b.c"}, {"b", "b.d"}, {"e"}};
  size_t i = 0;
  for (torch::jit::Node* node : model.graph->nodes()) {
    auto scope = c10::make_intrusive<torch::jit::Scope>();
    for (const std::string& name : stacks.at(i)) scope = scope->push(c10::Symbol::scope(name));
    node->setScope(scope);
    ++i;
  }
  model.symbols["s0"] = {2, 4096};
  for (int v = 0; sizes && v < 5; ++v)
    model.meta["v" + std::to_string(v)] = {at::kFloat, false, {"s0", "600"}, ""};
  return model;
}

ProfileSplit Wanted(const std::function<Model()>& read, int count) {
  ProfileSplit wanted;
  wanted.compile.output = TempPath("measured.pkg");
  wanted.compile.passes.split = ParseSplit("profile:" + std::to_string(count));
  wanted.read = read;
  wanted.microbatch = 256;
  wanted.repeat = 2;
  wanted.bandwidth = 1e12;  // so that transfers are short
  return wanted;
}

std::string SplitError(const ProfileSplit& wanted) {
  std::string note;
  return ErrorOf([&] { FindProfileSplit(wanted, note); });
}

TEST(ProfileSplit, CutsBesideTheSlowestSubmodule) {
  // The slowest module takes longer if it has another submodule besides this one.
  const std::pair<int, std::vector<int>> kCases[] = {{0, {1}}, {3, {3}}};
  for (const auto& [large, cuts] : kCases) {
    const ProfileSplit wanted = Wanted([large = large] { return FourSubmodules(large); }, 2);
    std::string note;
    const SplitSpec split = FindProfileSplit(wanted, note);
    EXPECT_EQ(split.kind, SplitSpec::kFine);
    EXPECT_EQ(split.depth, 0);
    EXPECT_FALSE(split.keep_all);
    EXPECT_EQ(split.keep, cuts) << note;
    EXPECT_EQ(split.text, "profile:2");
    EXPECT_EQ(note.find("4 pieces measured; the slowest of 2 modules takes "), 0u) << note;
    EXPECT_TRUE(note.ends_with(" ms is needed")) << note;
    EXPECT_FALSE(std::filesystem::exists(wanted.compile.output));
    // The cuts are those of a compilation.
    Model model = FourSubmodules(large);
    CompileOptions compile = wanted.compile;
    compile.passes.split = split;
    EXPECT_EQ(Compile(model, compile).manifest.modules.size(), 2u);
    std::filesystem::remove_all(compile.output);
  }
}

TEST(ProfileSplit, AsManyModulesAsThereArePieces) {
  std::string note;
  const auto read = [] { return FourSubmodules(1); };
  EXPECT_EQ(FindProfileSplit(Wanted(read, 4), note).keep, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(FindProfileSplit(Wanted(read, 1), note).keep, std::vector<int>{});
  EXPECT_EQ(SplitError(Wanted(read, 5)),
            "--split profile:5: cuts between submodules make only 4 modules\n"
            "  ask for as many at most, or cut with --split equal:5");
  EXPECT_FALSE(std::filesystem::exists(TempPath("measured.pkg")));
}

// The first models cannot be compiled; they differ in what is missing.
TEST(ProfileSplit, CoarserSubmodulesIfFineCutsFail) {
  auto failing = [](int count) {
    return [count, calls = std::make_shared<int>(0)] {
      Model model = FourSubmodules(0);
      const int call = (*calls)++;
      model.weights[0].names = {"w" + std::to_string(call)};
      if (call < count) model.weights[0].data.reset(), model.weights[0].absent = true;
      return model;
    };
  };
  std::string note;
  const std::string why = "test.pt2: was exported without weights: w0";
  const std::pair<int, const char*> kDepths[] = {{3, "4"}, {2, "4"}, {1, "3"}};
  for (int failures = 1; failures <= 3; ++failures) {
    const SplitSpec split = FindProfileSplit(Wanted(failing(failures), 2), note);
    const auto& [depth, pieces] = kDepths[failures - 1];
    EXPECT_EQ(split.depth, depth);
    EXPECT_EQ(split.keep, std::vector<int>{1}) << note;
    EXPECT_EQ(note.find(std::string(pieces) + " pieces measured; "), 0u) << note;
    EXPECT_NE(note.find("; finer pieces failed: " + why), std::string::npos) << note;
  }
  const std::string error = SplitError(Wanted(failing(4), 2));
  EXPECT_EQ(error.find("--split profile:2: " + why), 0u) << error;  // of the finest
}

TEST(ProfileSplit, NeedsInputs) {
  const auto read = [] { return FourSubmodules(0, /*sizes=*/false); };
  ProfileSplit wanted = Wanted(read, 2);
  EXPECT_EQ(SplitError(wanted),
            "--split profile:2: test.pt2 does not record the sizes of input \"v0\", which the "
            "measurement needs\n  give a safetensors file with a tensor for each input: "
            "--input FILE");
  wanted.input = TempPath("inputs.safetensors");
  const at::Tensor rows = at::ones({256, 600});
  const std::string_view bytes(static_cast<const char*>(rows.data_ptr()), rows.nbytes());
  WriteSafetensors(wanted.input, {{"v1", "F32", {256, 600}, bytes}});
  const std::string error = SplitError(wanted);
  EXPECT_EQ(error.find(wanted.input + ": no tensor \"v0\""), 0u) << error;
  WriteSafetensors(wanted.input, {{"v0", "F32", {256, 600}, bytes}});
  std::string note;
  EXPECT_EQ(FindProfileSplit(wanted, note).keep, std::vector<int>{1}) << note;
}

TEST(FinePieces, KeepTheCutsThatAreAsked) {
  CompileOptions compile;
  compile.output = TempPath("pieces.pkg");
  const auto read = [] { return FourSubmodules(1); };
  const FinePieces pieces = CompilePieces(compile, read);
  ASSERT_EQ(pieces.cut_before.size(), 4u);
  compile.output = TempPath("kept.pkg");
  compile.passes.split = KeepCuts(pieces, {1, 3});
  Model model = read();
  const Compiled kept = Compile(model, compile);
  ASSERT_EQ(kept.manifest.modules.size(), 3u);
  EXPECT_TRUE(kept.manifest.modules[0].held.empty());
  EXPECT_EQ(kept.manifest.modules[1].held.size(), 1u) << "b.c multiplies by the weight";
  compile.output = TempPath("whole.pkg");
  compile.passes.split = KeepCuts(pieces, {});
  Model whole = read();
  EXPECT_EQ(Compile(whole, compile).manifest.modules.size(), 1u);
}

}  // namespace
}  // namespace pipewright
