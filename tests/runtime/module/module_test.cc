#include "runtime/module/module.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "runtime/module/local_package.h"
#include "runtime/trial/shapes.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {

static const char kSum[] = R"(class Module1(Module):
  __parameters__ = []
  __buffers__ = []
  def forward(self: __torch__.Module1,
    y: Tensor) -> Tensor:
    return torch.sum(y, [1])
)";

// y = x * scale; z = y.sum(1)
static Manifest Example() {
  Manifest m;
  m.values = {{"x", ValueKind::kTensor, "float32", {"s0", "3"}, false, -1, {0}, {}},
              {"y", ValueKind::kTensor, "float32", {"s0", "3"}, true, 0, {1}, {}},
              {"z", ValueKind::kTensor, "float32", {"s0"}, true, 1, {}, {}}};
  m.symbols["s0"] = {2, 64};
  m.inputs = {0};
  m.outputs = {2};
  m.modules = {{"module0",
                "module0.py",
                "module0.safetensors",
                HexHash(kScaleCode),
                {},
                {0},
                {1},
                {{"scale", WeightKind::kParameter, "float32", {3}, true, true}}},
               {"module1", "module1.py", "module1.safetensors", HexHash(kSum), {}, {1}, {2}, {}}};
  return m;
}

static std::string Package(const std::string& first, const std::string& second = kSum) {
  std::string folder = testing::TempDir() + "/module_test.pkg";
  std::filesystem::create_directories(folder);
  WriteFile(folder + "/module0.py", first);
  WriteFile(folder + "/module1.py", second);
  float scale[] = {1, 2, 3};
  WriteSafetensors(folder + "/module0.safetensors",
                   {{"scale", "F32", {3}, {reinterpret_cast<const char*>(scale), sizeof scale}}});
  WriteSafetensors(folder + "/module1.safetensors", {});
  return folder;
}

static std::string Changed(std::string text, const std::string& from, const std::string& to) {
  size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Module, RunsItsCodeWithItsWeights) {
  LoadedModule module = LoadModule(Package(kScaleCode), Example(), 0);
  EXPECT_TRUE(module.weights[0].requires_grad());
  at::Tensor y = pipewright::Run(module, {at::ones({2, 3})})[0].toTensor();
  EXPECT_TRUE(at::equal(y, at::tensor({1.f, 2.f, 3.f, 1.f, 2.f, 3.f}).view({2, 3})));
}

// The error for an index that is not in its table names the range of the indices.
TEST(Module, ErrorsSayTheRangeOfIndices) {
  LoadedModule module = LoadModule(
      Package(Changed(kScaleCode, "torch.mul(x, scale)", "torch.embedding(scale.view([3, 1]), x)")),
      Example(), 0);
  try {
    pipewright::Run(module, {at::tensor({0, 2, 3, 1}, at::kLong)});
    FAIL() << "accepted";
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("\n  input x: int64 [4], values 0 to 3\n"), std::string::npos) << what;
  }
}

static std::string LoadError(const std::string& code) {
  return ErrorOf([&] { LoadModule(Package(code), Example(), 0); });
}

TEST(Module, ErrorsOfEditedCodeNameFileLineAndCaret) {
  std::string text = LoadError(Changed(kScaleCode, "torch.mul(", "torch.mull("));
  EXPECT_NE(text.find("module0.py\", line 9"), std::string::npos) << text;
  EXPECT_NE(text.find("<--- HERE"), std::string::npos) << text;
  EXPECT_EQ(text.find("Exception raised from"), std::string::npos) << text;
  text = LoadError(Changed(kScaleCode, "torch.mul(x, scale)", "torch.mul(x, scale"));
  EXPECT_NE(text.find("module0.py\", line "), std::string::npos) << text;
  for (auto [from, to, caret] :
       {std::tuple{"-> Tensor:", "-> Tensor",
                   "line 7:\n    x: Tensor) -> Tensor\n                        ~ <--- HERE"},
        {"    return ", "   return ", "\n   ~ <--- HERE"}}) {
    text = LoadError(Changed(kScaleCode, from, to));
    EXPECT_NE(text.find("module0.py\", line "), std::string::npos) << text;
    EXPECT_NE(text.find(caret), std::string::npos) << text;
  }
  text = LoadError(Changed(kScaleCode, "torch.mul(", "F.mul("));
  EXPECT_NE(text.find("write torch.relu(x) for F.relu(x)"), std::string::npos) << text;
  text = LoadError(Changed(kScaleCode, "x: Tensor", "x: Tensor, extra: Tensor"));
  EXPECT_NE(text.find("forward takes (x, extra) where manifest.json says (x)"), std::string::npos)
      << text;
  text = LoadError(Changed(Changed(kScaleCode, "-> Tensor", "-> Tuple[Tensor, Tensor]"),
                           "torch.mul(x, scale)", "(x, x)"));
  EXPECT_NE(text.find("forward returns 2 values where manifest.json says 1"), std::string::npos)
      << text;
  text =
      LoadError(Changed(kScaleCode, "  scale : Tensor\n", "  scale : Tensor\n  shift : Tensor\n"));
  EXPECT_NE(text.find("declares \"shift\", which the weight file does not hold"), std::string::npos)
      << text;
}

TEST(LocalPackage, RunsAndDifferentiatesWithoutRanks) {
  std::string path = Package(kScaleCode);
  WriteFile(path + "/manifest.json", WriteManifest(Example()));
  LocalPackage package(path, /*training=*/true);
  at::Tensor x = at::arange(6).view({2, 3}).to(at::kFloat);
  std::vector<c10::IValue> values = package.Begin({x});
  EXPECT_THROW(package.RunModule(1, values), Error);  // before module 0
  Conf conf;
  conf.module_to_stage = {0, 1};
  package.RunStage(conf, 0, values);
  EXPECT_TRUE(values[2].isNone());
  package.RunStage(conf, 1, values);
  at::Tensor z = package.End(values)[0].toTensor();
  EXPECT_TRUE(at::equal(z, package.Call({x})[0].toTensor()));
  EXPECT_TRUE(at::equal(z, at::tensor({8.f, 26.f})));
  z.sum().backward();
  EXPECT_TRUE(at::equal(package.Weight("scale").grad(), x.sum(0)));
  EXPECT_THROW(package.Weight("scales"), Error);
  EXPECT_THROW(package.Call({}), Error);
}

static std::vector<TensorSpec> Shapes(const std::string& package, int64_t rows,
                                      int64_t columns = 3) {
  return InferShapes(package, Example(), {{at::kFloat, {rows, columns}, true}});
}

TEST(Shapes, FromTheManifestWhereNothingWasEdited) {
  std::vector<TensorSpec> specs = Shapes(Package(kScaleCode), 5);
  EXPECT_EQ(specs[1].sizes, (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(specs[2].sizes, (std::vector<int64_t>{5}));
  EXPECT_EQ(specs[2].bytes(), 20);
}

TEST(Shapes, OfInputsThatAreMultiples) {
  Manifest manifest = Example();
  for (int id : {0, 1, 2}) manifest.values[id].shape[0] = "2*s7 + 1";
  auto rows = [&](int64_t given) {
    return InferShapes(Package(kScaleCode), manifest, {{at::kFloat, {given, 3}, true}})[2];
  };
  EXPECT_EQ(rows(5).sizes, (std::vector<int64_t>{5}));
  EXPECT_EQ(rows(11).sizes, (std::vector<int64_t>{11}));
  EXPECT_THROW(rows(6), Error);
  manifest.symbols["s7"] = {2, 4};
  EXPECT_EQ(rows(9).sizes, (std::vector<int64_t>{9}));
  EXPECT_THROW(rows(11), Error);
}

TEST(Shapes, ANumberOfSamplesThatIsFixed) {
  Manifest manifest = Example();
  for (int id : {0, 1, 2}) manifest.values[id].shape[0] = "8";
  try {
    InferShapes(Package(kScaleCode), manifest, {{at::kFloat, {4, 3}, true}});
    FAIL() << "accepted";
  } catch (const Error& e) {
    const std::string what = e.what(),
                      end = "data of this size (the number of samples in the job's microbatches)";
    EXPECT_NE(what.find(end), std::string::npos) << what;
  }
}

TEST(Shapes, AreRecomputedFromTheFirstEditedModule) {
  std::string wider = Changed(kScaleCode, "torch.mul(x, scale)",
                              "torch.cat([torch.layer_norm(x, [3], scale), torch.cat([x, x])])");
  std::vector<TensorSpec> specs = Shapes(Package(wider), 5);
  EXPECT_EQ(specs[1].sizes, (std::vector<int64_t>{15, 3}));
  EXPECT_EQ(specs[2].sizes, (std::vector<int64_t>{15}));
  specs = Shapes(Package(kScaleCode, Changed(kSum, "[1]", "[0]")), 5);
  EXPECT_EQ(specs[1].sizes, (std::vector<int64_t>{5, 3}));
  EXPECT_EQ(specs[2].sizes, (std::vector<int64_t>{3}));
}

// Zeros find the fault; the made-up numbers tried afterwards do not even reach it.
TEST(Shapes, AModuleThatRefusesMadeUpNumbersHidesNoFaultBehindIt) {
  const std::string picky =
      Changed(kScaleCode, "    return", R"(    if bool(torch.gt(torch.max(x), 0.)):
      raise AssertionError("picky")
    return)");
  try {
    Shapes(Package(picky, Changed(kSum, "[1]", "[7]")), 5);
    FAIL() << "accepted";
  } catch (const Error& e) {
    const std::string what = e.what();
    EXPECT_NE(what.find("module1.py: fails on zeros"), std::string::npos) << what;
    EXPECT_NE(what.find("/samples.safetensors, a tensor for each input (x)"), std::string::npos)
        << what;
  }
}

TEST(Shapes, CacheKeepsTheLastUsed) {
  Manifest manifest = Example();
  ShapeCache cache(Package(kScaleCode), manifest, 2);
  auto of = [&](int64_t rows) { return cache.Of({{at::kFloat, {rows, 3}, true}}); };
  auto five = of(5);
  EXPECT_EQ(five->at(2).sizes, (std::vector<int64_t>{5}));
  of(6);
  EXPECT_EQ(of(5), five);
  of(7);  // instead of 6
  EXPECT_EQ(of(5), five);
  EXPECT_EQ(of(6)->at(2).sizes, (std::vector<int64_t>{6}));
  EXPECT_EQ(cache.size(), 2u);
}

TEST(Shapes, InputsTheModelWasNotExportedFor) {
  auto error = [](int64_t rows, int64_t columns) {
    return ErrorOf([&] { Shapes(Package(kScaleCode), rows, columns); });
  };
  EXPECT_EQ(error(5, 4),
            "input \"x\": has sizes [5, 4], the model takes [s0, 3]\n  the model was exported for "
            "the call (x: float32 [s0, 3]): export it with a dynamic dimension, or give it data of "
            "this size");
  EXPECT_EQ(error(3, 5).substr(0, error(3, 5).find('\n')),
            "input \"x\": has sizes [3, 5], the model takes [s0, 3]; its dimensions would fit in "
            "another order: x.permute(1, 0).contiguous()");
  const std::string range = error(65, 3);
  EXPECT_EQ(range.substr(0, range.find('\n')),
            "input \"x\": has sizes [65, 3]; its dimension 0 was exported for 2 to 64");
  EXPECT_EQ(error(64, 3), "");
}

}  // namespace pipewright
