// Writes and loads model files. Expectations are from safetensors' own tests; files in
// tests/data/tensors were written by safetensors.torch.save_model 0.8.
#include "tensors/model_file.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "base/files/read_file.h"
#include "tensors/tensor_file.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"
#include "tests/tensors/models.h"

namespace pipewright {
namespace {

const std::string kData = TEST_DIR "/data/tensors/";

TEST(ModelFile, WritesWhatTheReferenceWrites) {
  TwoLinear shared(true), apart(false);
  for (TwoLinear* model : {&shared, &apart}) {
    int64_t i = 0;
    torch::NoGradGuard no_grad;
    for (torch::Tensor& p : model->parameters())
      p.copy_(torch::arange(p.numel()).view_as(p) + 100 * (model == &shared ? i++ % 2 : i++));
    const std::string name = model == &shared ? "shared.safetensors" : "apart.safetensors";
    const std::string path = TempPath(name);
    SaveModel(*model, path);
    const TensorFile ours(path), theirs(kData + name);
    EXPECT_EQ(ours.Names(), theirs.Names());
    EXPECT_EQ(ours.Metadata(), theirs.Metadata());
    for (const std::string& tensor : ours.Names())
      EXPECT_TRUE(torch::equal(ours.Get(tensor), theirs.Get(tensor))) << tensor;
    // The payloads are in the same order.
    const std::string mine = ReadFile(path), reference = ReadFile(kData + name);
    const uint64_t bytes = model == &shared ? 80 : 160;
    EXPECT_EQ(mine.substr(mine.size() - bytes), reference.substr(reference.size() - bytes));
    if (model == &shared) {
      EXPECT_EQ(mine, reference);  // to the byte: the padding is the same, too
    }
  }
}

TEST(ModelFile, LoadReportsWhatTheReferenceReports) {
  const std::string shared_file = kData + "shared.safetensors";
  const std::string apart_file = kData + "apart.safetensors";
  TwoLinear shared(true), apart(false);
  LoadReport report = LoadModel(shared, shared_file);
  EXPECT_EQ(ReportText(report), "");
  EXPECT_TRUE(torch::equal(shared.b->weight, torch::arange(16.0).view({4, 4})));
  EXPECT_EQ(LoadModel(apart, shared_file, false).missing, (Names{"b.bias", "b.weight"}));
  EXPECT_TRUE(torch::equal(apart.a->bias, torch::arange(4.0) + 100));
  EXPECT_EQ(LoadModel(shared, apart_file, false).unexpected, (Names{"b.bias", "b.weight"}));
  const torch::Tensor before = apart.a->weight.clone();
  EXPECT_EQ(ErrorOf([&] { LoadModel(apart, shared_file); }),
            shared_file +
                ": missing: \"b.bias\", \"b.weight\"\n"
                "  pass strict = false, or give weights of this model");
  EXPECT_TRUE(torch::equal(apart.a->weight, before));
  torch::nn::Linear narrow(3, 4);
  EXPECT_EQ(ErrorOf([&] { LoadModel({{"a.weight", narrow->weight}}, shared_file, false); }),
            "Trying to set a tensor of shape [4, 4] in \"a.weight\" (which has shape [4, 3]), this "
            "looks incorrect.");
  // The model's types are kept.
  shared.to(torch::kHalf);
  LoadModel(shared, shared_file);
  EXPECT_EQ(shared.a->weight.scalar_type(), torch::kHalf);
  EXPECT_EQ(shared.a->weight[3][3].item<float>(), 15);
}

TEST(ModelFile, PartsOfOneStorage) {
  const std::string path = TempPath("slices.safetensors");
  torch::Tensor whole = torch::arange(100, torch::kFloat);
  SaveModel({{"x", whole.slice(0, 0, 1)}}, path);
  EXPECT_EQ(TensorFile(path).At("x").bytes, 4u);  // not the 400 of its buffer
  const NamedTensors parts = {
      {"C", whole.slice(0, 32, 48)}, {"A", whole}, {"B", whole.slice(0, 8, 16)}};
  SaveModel(parts, path);
  EXPECT_EQ(TensorFile(path).Names(), Names{"A"});
  EXPECT_EQ(TensorFile(path).Metadata(),
            (std::map<std::string, std::string>{{"B", "A"}, {"C", "A"}}));
  torch::Tensor other = torch::zeros({100});
  EXPECT_EQ(ReportText(LoadModel({{"A", other}, {"B", other.slice(0, 8, 16)}}, path)), "");
  EXPECT_TRUE(torch::equal(other, whole));
  SaveModel({{"A", whole.slice(0, 0, 50)}, {"B", whole.slice(0, 50)}}, path);
  EXPECT_EQ(TensorFile(path).Names().size(), 2u);
  EXPECT_NE(ErrorOf([&] {
              SaveModel({{"A", whole.slice(0, 0, 50)}, {"B", whole.slice(0, 40)}}, path);
            }).find("none covers all of it"),
            std::string::npos);
  SaveOptions names;
  names.preferred = {"z"};
  SaveModel({{"a", whole}, {"z", whole}}, path, names);
  EXPECT_EQ(TensorFile(path).Names(), Names{"z"});
  names.preferred = {}, names.discard = {"a"}, names.metadata = {{"a", "mine"}};
  SaveModel({{"a", whole}, {"b", whole}}, path, names);
  EXPECT_EQ(TensorFile(path).Names(), Names{"b"});
  EXPECT_EQ(TensorFile(path).Metadata().at("a"), "mine");
}

TEST(ModelFile, WhatCannotBeWritten) {
  const std::string path = TempPath("refused.safetensors");
  torch::Tensor turned = torch::rand({10, 20}).t();
  EXPECT_NE(ErrorOf([&] { SaveModel({{"t", turned}}, path); }).find("\"t\": is not contiguous"),
            std::string::npos);
  SaveOptions force;
  force.force_contiguous = true;
  SaveModel({{"t", turned}}, path, force);
  EXPECT_TRUE(torch::equal(TensorFile(path).Get("t"), turned));
  // A tensor beside its transpose: one memory, and the first name is the contiguous one.
  SaveModel({{"u", turned}, {"a", turned.t()}}, path);
  EXPECT_EQ(TensorFile(path).Names(), Names{"a"});
  ErrorOf([&] { SaveModel({{"m", torch::empty({2}, torch::kMeta)}}, path); });
  ErrorOf([&] { SaveModel({{"s", torch::eye(3).to_sparse()}}, path); });
  ErrorOf([&] { SaveModel({{"c", torch::zeros({2}, torch::kComplexDouble)}}, path); });
  EXPECT_EQ(TensorFile(path).Names(), Names{"a"});  // the file is unchanged
  torch::Tensor conjugate = torch::randn({3}, torch::kComplexFloat).conj();
  SaveModel({{"c", conjugate},
             {"none", torch::zeros({0, 3})},
             {"one", torch::tensor(3.5)},
             {"f8", torch::ones({3}).to(at::kFloat8_e4m3fn)}},
            path);
  EXPECT_TRUE(torch::equal(TensorFile(path).Get("c"), conjugate));
  // A tensor and its conjugate share memory, but are two tensors.
  SaveModel({{"c", conjugate}, {"d", conjugate.conj()}}, path);
  EXPECT_EQ(TensorFile(path).Names(), (Names{"c", "d"}));
  EXPECT_TRUE(torch::equal(TensorFile(path).Get("d"), conjugate.conj()));
  // Two names of the same conjugate are still one tensor.
  SaveModel({{"c", conjugate}, {"tied", conjugate}}, path);
  EXPECT_EQ(TensorFile(path).Names(), (Names{"c"}));
  EXPECT_EQ(ErrorOf([&] { SaveModel({{"m", torch::Tensor()}}, path); }),
            "\"m\": is not defined: it has no values");
  SaveModel({{"c", conjugate},
             {"none", torch::zeros({0, 3})},
             {"one", torch::tensor(3.5)},
             {"f8", torch::ones({3}).to(at::kFloat8_e4m3fn)}},
            path);
  EXPECT_EQ(TensorFile(path).Get("none").sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(TensorFile(path).Get("one").item<float>(), 3.5);
  EXPECT_EQ(TensorFile(path).Get("f8").to(torch::kFloat)[2].item<float>(), 1);
}

TEST(TensorFile, FourBitNumbers) {
  const TensorFile file(kData + "f4.safetensors");  // torch.zeros(2, 4).view(float4_e2m1fn_x2)
  const torch::Tensor packed = file.Get("f4");
  EXPECT_EQ(packed.scalar_type(), at::kFloat4_e2m1fn_x2);
  EXPECT_EQ(packed.sizes(), (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(file.GetSlice("f4", {{1}, {2}}).sizes(), (std::vector<int64_t>{1, 2}));
  const std::string path = TempPath("f4.safetensors");
  SaveModel({{"f4", packed}}, path);
  EXPECT_EQ(ReadFile(path), ReadFile(kData + "f4.safetensors"));
}

uint64_t BytesRead() {
  std::ifstream io("/proc/thread-self/io");
  std::string key;
  uint64_t value = 0;
  while (io >> key >> value)
    if (key == "rchar:") return value;
  return 0;
}

TEST(TensorFile, GetSliceReadsWhatItReturns) {
  const std::string path = TempPath("get.safetensors");
  torch::Tensor x = torch::rand({4, 300, 5});
  SaveModel({{"x", x}, {"y", torch::rand({1000})}}, path);
  const TensorFile file(path);
  auto counted = [&](const std::vector<SliceRange>& ranges) {
    const uint64_t own = BytesRead(), before = BytesRead();
    torch::Tensor slice = file.GetSlice("x", ranges);
    EXPECT_EQ(BytesRead() - before, slice.nbytes() + (before - own));
    return slice;
  };
  EXPECT_TRUE(torch::equal(counted({}), x));
  EXPECT_TRUE(torch::equal(counted({{1, 3}}), x.slice(0, 1, 3)));
  EXPECT_TRUE(torch::equal(counted({{0, 4}, {-2}}), x.slice(1, 298)));
  EXPECT_TRUE(torch::equal(counted({{2, 3}, {4, 9}, {1, 2}}),
                           x.slice(0, 2, 3).slice(1, 4, 9).slice(2, 1, 2)));
  EXPECT_TRUE(torch::equal(counted({{0}, {0}, {-1}}), x.slice(2, 4)));
  EXPECT_EQ(counted({{3, 2}}).sizes(), (std::vector<int64_t>{0, 300, 5}));
  EXPECT_NE(ErrorOf([&] {
              file.GetSlice("x", {{0, 4}, {0, 301}});
            }).find("index 301 out of bounds for tensor dimension #1 of size 300"),
            std::string::npos);
  ErrorOf([&] { file.GetSlice("x", {{-5, 2}}); });
  ErrorOf([&] { file.GetSlice("x", {{0}, {0}, {0}, {0}}); });
  EXPECT_NE(ErrorOf([&] { file.Get("yy"); }).find("did you mean \"y\"?"), std::string::npos);
}

}  // namespace
}  // namespace pipewright
