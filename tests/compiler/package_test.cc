// Writes packages: code with comments, weights, samples, explanations.
#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <filesystem>

#include "base/files/read_file.h"
#include "base/text.h"
#include "compiler/emit/annotate.h"
#include "compiler/emit/explain.h"
#include "compiler/emit/package.h"
#include "compiler/emit/samples.h"
#include "compiler/emit/weight_file.h"
#include "formats/weights/safetensors.h"
#include "passes/pipeline.h"
#include "tests/error_text.h"
#include "tests/passes/model_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

namespace fs = std::filesystem;

std::string Bytes(const at::Tensor& tensor) {
  return std::string(static_cast<const char*>(tensor.data_ptr()), tensor.nbytes());
}

TEST(AnnotateCode, SaysWhereOperationsComeFromAndShortensFloats) {
  const std::string first =
      "class Module0(Module):\n  __parameters__ = []\n  w : Tensor\n"
      "  def forward(self: __torch__.Module0,\n    x: Tensor) -> Tensor:\n";
  const std::string rows[] = {
      "    y = torch.mul(x, 1.0000000000000001e-05)\n",
      "    z = torch.add(y, 0.10000000000000001, \"0.10000000000000001\")\n",
      "    u = torch.sin(z)\n", "    return u\n"};
  std::string text = first;
  torch::jit::SourceRangeRecords ranges;
  auto add = [&](const std::string& row, const std::string& origin) {
    auto source = std::make_shared<torch::jit::Source>(origin);
    ranges.emplace_back(text.size() + 4, torch::jit::SourceRange(source, 0, origin.size()));
    text += row;
  };
  add(rows[0], "fc|model.py:31|self.fc(x)");
  add(rows[1], "fc|model.py:31|self.fc(x)");
  add(rows[2], "|model.py:32|a|b");
  add(rows[3], "|model.py:32|a|b");
  EXPECT_EQ(AnnotateCode(text, ranges, {{"z", "see there"}}),
            "class Module0(Module):\n  def forward(self, x: Tensor) -> Tensor:\n"
            "    # fc  model.py:31: self.fc(x)\n    y = torch.mul(x, 1e-05)\n"
            "    z = torch.add(y, 0.1, \"0.10000000000000001\")  # see there\n"
            "    # model.py:32: a|b\n    u = torch.sin(z)\n    return u\n");
  std::string folded = "  def f(self):\n    return torch.sin(x)\n",
              named = "  def f(self):\n    return y\n";
  NameResult(folded, "y");
  EXPECT_EQ(folded, "  def f(self):\n    y = torch.sin(x)\n    return y\n");
  const std::string before = named;
  NameResult(named, "y");
  EXPECT_EQ(named, before);
}

TEST(WeightReader, ReadsStridesAndStoredDtypes) {
  const at::Tensor floats = at::arange(12, at::kFloat), halfs = at::arange(4, at::kHalf);
  const std::string path = TempPath("weights.bin");
  WriteFile(path, "xyz-" + Bytes(floats) + Bytes(halfs));
  Model model;
  model.files = {path};
  const WeightReader reader(model);
  auto read = [&](const Weight& weight) {
    std::string bytes;
    reader.Read(weight, [&](std::string_view piece) { bytes += piece; });
    return bytes;
  };
  Weight weight = Parameter("w");
  weight.file_offset = 4, weight.file_bytes = 48;
  weight.shape = {2, 3}, weight.strides = {3, 1}, weight.storage_offset = 6;
  EXPECT_EQ(read(weight), Bytes(floats.slice(0, 6)));
  weight.strides = {1, 4}, weight.storage_offset = 1;  // in another order, with gaps
  EXPECT_EQ(read(weight), Bytes(floats.as_strided({2, 3}, {1, 4}, 1).contiguous()));
  weight.shape = {0, 3};
  EXPECT_EQ(read(weight), "");
  weight.file_offset = 52, weight.storage_offset = 0, weight.shape = {4}, weight.strides = {1};
  weight.stored = at::kHalf;
  EXPECT_EQ(read(weight), Bytes(halfs.to(at::kFloat)));
  weight.data = floats.view({3, 4}).t(), weight.shape = {4, 3}, weight.stored.reset();
  EXPECT_EQ(read(weight), Bytes(floats.view({3, 4}).t().contiguous()));
}

Model TwoLayers() {
  Weight a = Parameter("a.weight"), b = Parameter("b.weight");
  for (Weight* weight : {&a, &b}) weight->shape = {3, 3}, weight->strides = {3, 1};
  a.data = at::arange(9, at::kFloat).view({3, 3}), b.data = at::ones({3, 3});
  Model model = ParseModel(R"IR(
graph(%a : Tensor, %b : Tensor, %training : bool, %device : Device, %x : Tensor):
  %y : Tensor = aten::mm(%x, %a)
  pipewright::pipe_split()
  %z : Tensor = aten::mm(%y, %b)
  return (%z)
)IR",
                           {a, b});
  model.symbols["s0"] = {2, 8};
  for (const char* value : {"x", "y", "z"})
    model.meta[value] = {at::kFloat, false, {"s0", "3"}, ""};
  auto scope = c10::make_intrusive<torch::jit::Scope>();
  Find(model, "aten::mm", 0)->setScope(scope->push(c10::Symbol::scope("a")));
  Find(model, "aten::mm", 1)->setScope(scope->push(c10::Symbol::scope("b")));
  model.submodules = {"a", "b"};
  return model;
}

TEST(WritePackage, HoldsModulesWeightsManifestAndConfs) {
  Model model = TwoLayers();
  const std::vector<ModuleBody> bodies = RunPasses(model, {});
  ASSERT_EQ(bodies.size(), 2u);
  PackageOptions options;
  options.output = TempPath("out.pkg");
  const Manifest manifest = WritePackage(model, bodies, options);
  ASSERT_EQ(manifest.modules.size(), 2u);
  EXPECT_EQ(WriteManifest(ReadManifest(options.output)), WriteManifest(manifest));
  Manifest plain = manifest;
  for (ModuleInfo& module : plain.modules) module.code_hash.clear(), module.line_hashes.clear();
  EXPECT_EQ(WriteManifest(MakeManifest(model, bodies)), WriteManifest(plain));
  for (size_t m : {0, 1}) {
    const ModuleInfo& module = manifest.modules[m];
    const std::string code = ReadFile(options.output + "/" + module.code);
    EXPECT_EQ(HexHash(code), module.code_hash);
    EXPECT_NE(code.find("torch.mm("), std::string::npos) << code;
    const SafetensorsFile file(options.output + "/" + module.weights);
    std::string bytes(36, '\0');
    file.Read(file.At(m ? "b.weight" : "a.weight"), 0, bytes.data(), 36);
    EXPECT_EQ(bytes, Bytes(model.weights[m].data));
  }
  EXPECT_EQ(manifest.values[manifest.modules[1].inputs.at(0)].shape,
            (std::vector<std::string>{"s0", "3"}));
  const Conf conf = ReadConf(options.output + "/conf/mp_conf.json");
  EXPECT_EQ(conf.module_to_stage, (std::vector<int>{0, 1}));
  EXPECT_FALSE(fs::exists(options.output + "/samples.safetensors"));

  CheckReplaceable(options, {});
  WriteFile(options.output + "/mine.txt", "");
  EXPECT_EQ(ErrorOf([&] { CheckReplaceable(options, {}); }),
            options.output +
                ": holds what somebody edited or added: mine.txt\n  choose another "
                "output, or replace it all with --force");
  EXPECT_EQ(ErrorOf([&] { WritePackage(model, bodies, options); }).find(options.output + ": holds"),
            0u);
  options.force = true;
  WritePackage(model, bodies, options);
  EXPECT_FALSE(fs::exists(options.output + "/mine.txt"));
  EXPECT_EQ(ErrorOf([&] { CheckReplaceable(options, {options.output + "/model.pt2"}); }),
            options.output + ": contains the input " + options.output +
                "/model.pt2, which would be deleted\n  choose another output");
  options.output += "/inside";
  EXPECT_NE(ErrorOf([&] { CheckReplaceable(options, {}); }).find(": lies in the package "),
            std::string::npos);
  options.output = TempPath("folder");
  fs::create_directories(options.output);
  CheckReplaceable(options, {});  // empty
  WriteFile(options.output + "/file", "");
  EXPECT_EQ(ErrorOf([&] { CheckReplaceable(options, {}); }),
            options.output +
                ": exists and is not a package\n  choose another output, or remove it "
                "yourself");
}

TEST(Explain, ModulesWithTheirValues) {
  Model model = TwoLayers();
  const std::vector<ModuleBody> bodies = RunPasses(model, {});
  const std::string text = Explain(model, bodies, MakeManifest(model, bodies));
  for (const char* part :
       {"module0, cut ",
        "  submodules: a\n  operations: a 1\n  weights: 1, 36 B\n  takes x from the input\n"
        "  gives y to module1\n",
        "module1, cut ",
        "  submodules: b\n  operations: b 1\n  weights: 1, 36 B\n  takes y from module0\n"
        "  gives z to the output\n"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
}

TEST(WriteSamples, AsTheModelTakesThem) {
  const std::string archive = TempPath("model.pt2"), path = TempPath("samples.safetensors");
  auto write = [&](const c10::IValue& example) {
    caffe2::serialize::PyTorchStreamWriter writer(archive);
    const std::vector<char> bytes = torch::jit::pickle_save(example);
    writer.writeRecord("data/sample_inputs/model.pt", bytes.data(), bytes.size());
    writer.writeEndOfFile();
  };
  Model model;
  model.file = archive;
  Manifest manifest;
  manifest.values = {{"x", ValueKind::kTensor, "bfloat16", {"s0", "2"}, false, -1, {0}, {}},
                     {"n", ValueKind::kInt, "", {}, false, -1, {0}, {}}};
  manifest.inputs = {0, 1};
  const at::Tensor x = at::tensor({1.f, 2.f, 3.f, 4.f}).view({2, 2}).t();
  auto dict = c10::Dict<std::string, int64_t>();
  dict.insert("n", 7);
  write(c10::ivalue::Tuple::create(c10::ivalue::Tuple::create(x), dict));
  WriteSamples(model, manifest, path);
  const SafetensorsFile file(path);
  std::string bytes(8, '\0');
  file.Read(file.At("x"), 0, bytes.data(), 8);
  EXPECT_EQ(bytes, Bytes(x.to(at::kBFloat16).contiguous()));
  int64_t n = 0;
  EXPECT_EQ(file.At("n").dtype, "I64");  // numbers travel as int64, float64 or bool
  file.Read(file.At("n"), 0, reinterpret_cast<char*>(&n), 8);
  EXPECT_EQ(n, 7);
  fs::remove(path);
  write(c10::ivalue::Tuple::create(x, x, x));  // another call
  WriteSamples(model, manifest, path);
  model.file = TempPath("missing.pt2");
  WriteSamples(model, manifest, path);
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace pipewright
