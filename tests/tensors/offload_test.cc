// Loads weights by device maps, and offloads them. Expectations are from accelerate's and
// torch-to-nnef's own tests.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>

#include "tensors/device_load.h"
#include "tensors/empty_weights.h"
#include "tensors/model_file.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"
#include "tests/tensors/models.h"

namespace pipewright {
namespace {

size_t EntriesOf(const std::string& folder) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) count += entry.exists();
  return count;
}

TEST(OffloadedTensor, LivesInAFileAsLongAsAHandle) {
  const std::string folder = TempPath("offloaded");
  {
    torch::Tensor x = torch::rand({10, 10});
    OffloadedTensor a = OffloadedTensor::From(x, "same", folder);
    OffloadedTensor b = OffloadedTensor::From(x + 1, "same", folder);  // names never collide
    EXPECT_EQ(EntriesOf(folder), 1u);
    EXPECT_TRUE(torch::equal(a, x));
    EXPECT_TRUE(torch::equal(torch::matmul(b, x), torch::matmul(x + 1, x)));
    EXPECT_EQ(std::filesystem::file_size(a.file()), 400u);
    OffloadedTensor half = a.To(at::kHalf);
    EXPECT_EQ(half.dtype(), at::kHalf);
    EXPECT_TRUE(torch::equal(half.Load(), x.to(at::kHalf)));
    EXPECT_EQ(a.dtype(), at::kFloat);
    EXPECT_EQ(a.To(at::Device(at::kMeta)).device(), at::Device(at::kMeta));
    OffloadedTensor copy = a;
    copy.UpdateValues(x * 2);
    EXPECT_TRUE(torch::equal(a.Load(), x * 2));
    EXPECT_NE(ErrorOf([&] {
                a.UpdateValues(torch::rand({5}));
              }).find("has shape [10, 10], the values have [5]"),
              std::string::npos);
    EXPECT_NE(ErrorOf([&] {
                a.UpdateValues(x.to(at::kHalf));
              }).find("is float32, the values are float16"),
              std::string::npos);
    a.UpdateValues(torch::zeros({0}, at::kBool), false, false);
    EXPECT_EQ(copy.sizes(), std::vector<int64_t>{0});
    EXPECT_EQ(copy.Load().scalar_type(), at::kBool);
    const std::string file = b.file();
    b = a;
    EXPECT_FALSE(std::filesystem::exists(file));
    // A type that the file format lacks, and a tensor that is not in order.
    torch::Tensor z = torch::randn({3, 4}, torch::kComplexDouble).t().conj();
    EXPECT_TRUE(torch::equal(OffloadedTensor::From(z, "z", folder), z));
    ErrorOf([&] { OffloadedTensor::From(torch::empty({1}, at::kMeta), "m", folder); });
    ErrorOf([&] { OffloadedTensor::From(torch::eye(2).to_sparse(), "s", folder); });
  }
  EXPECT_EQ(EntriesOf(folder), 0u);
}

TEST(OffloadedTensor, EveryKindComesBackToTheBit) {  // even those that accelerate's store refuses
  const torch::Tensor x = torch::randn({2, 3});
  for (const torch::Tensor& value :
       {x, x.to(at::kHalf), x.to(at::kBFloat16), x.to(at::kFloat8_e4m3fn), x > 0, x.to(at::kChar),
        (x * 1e9).to(at::kLong), torch::randn({2}, at::kComplexFloat), torch::tensor(2.5), x.t(),
        x.slice(1, 0, 3, 2), torch::zeros({0, 3}), torch::rand({2}, at::requires_grad())}) {
    const OffloadedTensor tensor = OffloadedTensor::From(value, "t", TempPath("kinds"));
    // Known without reading.
    const std::string file = tensor.file();
    if (value.numel()) std::filesystem::rename(file, file + "-away");
    EXPECT_EQ(tensor.sizes(), value.sizes());
    EXPECT_EQ(tensor.dtype(), value.scalar_type());
    EXPECT_EQ(tensor.numel(), value.numel());
    EXPECT_EQ(tensor.device(), value.device());
    if (value.numel()) {
      ErrorOf([&] { tensor.Load(); });
      std::filesystem::rename(file + "-away", file);
    }
    const torch::Tensor back = tensor, bytes = value.detach().contiguous();
    EXPECT_EQ(back.scalar_type(), value.scalar_type());
    ASSERT_EQ(back.nbytes(), bytes.nbytes());
    EXPECT_EQ(std::string(static_cast<const char*>(back.data_ptr()), back.nbytes()),
              std::string(static_cast<const char*>(bytes.data_ptr()), bytes.nbytes()));
  }
}

TEST(OffloadedTensor, WhatACrashLeavesIsSwept) {
  const std::string folder = TempPath("crash");
  std::filesystem::create_directories(folder);
  // A process that dies and one that lives.
  auto child = [&](bool dies) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      close(ready[0]);
      torch::Tensor x = torch::empty({4});
      OffloadedTensor tensor = OffloadedTensor::From(x, "x", folder);
      EXPECT_EQ(write(ready[1], "x", 1), 1);
      if (dies) raise(SIGKILL);
      pause();
    }
    close(ready[1]);
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
  };
  // Left by a process that died between making its folder and locking it.
  std::filesystem::create_directory(folder + "/pipewright-offload-abcdef");
  const pid_t alive = child(false), dead = child(true);
  waitpid(dead, nullptr, 0);
  EXPECT_EQ(EntriesOf(folder), 2u);
  {
    OffloadedTensor mine = OffloadedTensor::From(torch::ones({2}), "x", folder);
    EXPECT_EQ(EntriesOf(folder), 2u);  // the living one's and ours
  }
  EXPECT_EQ(EntriesOf(folder), 1u);
  kill(alive, SIGKILL);
  waitpid(alive, nullptr, 0);
  OffloadedTensor::From(torch::ones({2}), "x", folder);
  EXPECT_EQ(EntriesOf(folder), 0u);
}

TEST(EmptyWeights, ModelsOfAnySize) {
  torch::nn::Sequential huge;
  {
    EmptyWeights scope;
    for (int i = 0; i < 1000; ++i) huge->push_back(torch::nn::Linear(10000, 10000));
  }
  EXPECT_EQ(huge->parameters().size(), 2000u);
  for (const torch::Tensor& p : huge->parameters()) EXPECT_TRUE(p.is_meta() && p.requires_grad());
  EXPECT_EQ(huge->parameters()[0].numel(), 100'000'000);
  EXPECT_FALSE(torch::rand({2}).is_meta());
  struct Own : torch::nn::Module {
    torch::Tensor w, frozen, mask, table;
    Own() {
      w = register_parameter("w", torch::ones({2, 3}) * 2);
      frozen = register_parameter("frozen", torch::zeros({2}), /*requires_grad=*/false);
      mask = register_buffer("mask", torch::ones({4, 4}).tril());
      table = register_buffer("table", torch::tensor(std::vector<float>{1, 2, 3}));
    }
  };
  {
    EmptyWeights scope;
    torch::nn::BatchNorm1d norm(4);
    Own own;
    torch::nn::LSTM lstm(torch::nn::LSTMOptions(8, 8).num_layers(2));
    EXPECT_TRUE(norm->running_var.equal(torch::ones({4})));
    EXPECT_TRUE(norm->weight.is_meta());
    EXPECT_TRUE(own.w.is_meta());
    EXPECT_TRUE(torch::equal(own.table, torch::tensor({1., 2., 3.}, torch::kFloat)));
    for (const torch::Tensor& p : lstm->parameters()) EXPECT_TRUE(p.is_meta());
    {
      EmptyWeights both(true);
      EXPECT_TRUE(torch::nn::BatchNorm1d(4)->running_mean.is_meta());
    }
    EXPECT_FALSE(torch::nn::BatchNorm1d(4)->running_mean.is_meta());
  }
  auto all = [] {
    EmptyWeights scope(true);
    return std::make_unique<Own>();
  }();
  for (const auto& [name, tensor] : StateDictOf(*all))
    EXPECT_EQ(tensor.is_meta(), name != "table") << name;
  // Copies of one module stay tied.
  EmptyWeights scope;
  EXPECT_EQ(OwnersOf(StateDictOf(TwoLinear(true))).size(), 2u);
  EXPECT_EQ(OwnersOf(StateDictOf(TwoLinear(false))).size(), 4u);
}

TEST(DeviceLoad, KeepsTiesAndLeavesTheRestOnDisk) {
  const std::string path = TempPath("map.safetensors");
  TwoLinear full(false);
  SaveModel(full, path);
  auto make = [](bool shared) {
    EmptyWeights scope;
    return std::make_unique<TwoLinear>(shared);
  };
  auto empty = make(false);
  torch::Tensor x = torch::rand({2, 4});
  DeviceLoad load =
      LoadByDeviceMap(*empty, path, {{"a", "cpu"}, {"b.weight", "disk"}, {"b.bias", "disk"}});
  EXPECT_TRUE(torch::equal(empty->a->forward(x), full.a->forward(x)));
  EXPECT_TRUE(empty->b->weight.is_meta() && empty->b->weight.requires_grad());
  EXPECT_EQ(load.on_disk.size(), 2u);
  EXPECT_EQ(load.on_disk.at("b.weight").file(), path);  // no second copy
  {
    Resident here(*empty, load.on_disk, "b");
    EXPECT_TRUE(torch::equal(empty->forward(x), full.forward(x)));
    empty->forward(x).sum().backward();  // gradients too
    full.forward(x).sum().backward();
    EXPECT_TRUE(torch::equal(empty->b->weight.grad(), full.b->weight.grad()));
  }
  EXPECT_TRUE(empty->b->weight.is_meta());
  EXPECT_ANY_THROW(empty->to(at::kCPU));  // it would leave the weights without values
  // A model that is partly on disk is written completely.
  const std::string again = TempPath("again.safetensors");
  SaveModel(*empty, again, {}, load.on_disk);
  EXPECT_TRUE(torch::equal(TensorFile(again).Get("b.weight"), full.b->weight));

  // Loads a file with one name of each group into a model in which two are tied.
  TwoLinear shared(true);
  const std::string one = TempPath("one.safetensors");
  SaveModel(shared, one);
  for (const char* device : {"cpu", "disk"}) {
    auto tied = make(true);
    DeviceLoad loaded = LoadByDeviceMap(*tied, one, {{"a", device}, {"b", device}});
    EXPECT_TRUE(tied->a->weight.is_same(tied->b->weight));
    EXPECT_EQ(loaded.on_disk.size(), device == std::string("disk") ? 4u : 0u);
    Resident here(*tied, loaded.on_disk, "b.weight");
    EXPECT_TRUE(torch::equal(tied->a->weight, shared.b->weight));
  }
  // Parts of one memory block stay parts of it.
  struct Parts : torch::nn::Module {
    torch::Tensor whole, part;
    Parts() {
      whole = register_buffer("whole", torch::arange(10.0));
      part = register_buffer("part", whole.slice(0, 2, 4));
    }
  } parts;
  SaveModel(parts, again);
  DeviceLoad away = LoadByDeviceMap(parts, again, {{"", "disk"}});
  EXPECT_TRUE(parts.part.is_meta());
  Resident here(parts, away.on_disk);
  EXPECT_TRUE(torch::equal(parts.part, torch::tensor({2., 3.}, torch::kFloat)));
  EXPECT_TRUE(parts.part.is_alias_of(parts.whole));
}

// A file may hold another view of the memory than the one that is kept for the model.
TEST(DeviceLoad, ValuesUnderTheNameOfAView) {
  struct Views : torch::nn::Module {
    torch::Tensor a, b, part;
    explicit Views(bool meta) {
      auto values = torch::arange(6.0, at::device(meta ? at::kMeta : at::kCPU)).view({2, 3});
      a = register_buffer("a", values);
      b = register_buffer("b", values.t());
      part = register_buffer("part", values[1]);
    }
  } full(false);
  const std::string path = TempPath("view.safetensors"), rest = TempPath("rest.safetensors");
  SaveOptions forced;
  forced.force_contiguous = true;
  SaveModel({{"b", full.b * 2}}, path, forced);
  SaveModel({{"part", full.part * 3}}, rest);
  for (const char* device : {"cpu", "disk"})
    for (bool meta : {true, false}) {
      Views model(meta);
      DeviceLoad load = LoadByDeviceMap(model, path, {{"", device}});
      Resident here(model, load.on_disk);
      EXPECT_TRUE(torch::equal(model.a, full.a * 2));
      EXPECT_TRUE(torch::equal(model.b, full.b * 2) && model.b.is_alias_of(model.a));
      EXPECT_TRUE(torch::equal(model.part, full.part * 2));
    }
  Views model(true);
  EXPECT_EQ(LoadModel(model, path).missing, Names{});
  EXPECT_TRUE(torch::equal(model.a, full.a * 2) && torch::equal(model.b, full.b * 2));
  // A part alone is not the whole.
  DeviceLoadOptions loosely;
  loosely.strict = false;
  Views partly(true);
  EXPECT_EQ(LoadModel(partly, rest, false).unexpected, Names{"part"});
  EXPECT_TRUE(partly.a.is_meta());
  DeviceLoad load = LoadByDeviceMap(partly, rest, {{"", "cpu"}}, loosely);
  EXPECT_EQ(load.report.missing, Names{"a"});
  EXPECT_TRUE(partly.a.is_meta() && partly.a.sizes() == full.a.sizes());
}

TEST(DeviceLoad, Options) {
  const std::string path = TempPath("norm.safetensors");
  torch::nn::Sequential model(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  SaveModel(*model, path);
  // The dtype applies to floats only.
  torch::nn::Sequential half;
  {
    EmptyWeights scope(true);
    half = torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
  }
  DeviceLoadOptions options;
  options.dtype = at::kHalf;
  DeviceLoad load = LoadByDeviceMap(*half, path, {{"0", "disk"}, {"1", "0"}}, options);
  EXPECT_EQ(half->named_buffers()["1.running_mean"].scalar_type(), at::kHalf);
  EXPECT_EQ(half->named_buffers()["1.num_batches_tracked"].scalar_type(), at::kLong);
  EXPECT_EQ(load.on_disk.at("0.weight").dtype(), at::kHalf);
  EXPECT_EQ(load.on_disk.at("0.weight").Load().scalar_type(), at::kHalf);
  EXPECT_EQ(load.on_disk.at("0.weight").file(), path);
  // A state dict in memory: its tensors stay the caller's.
  AnyTensors values = LoadStateDict(path);
  const torch::Tensor given = std::get<at::Tensor>(values.at("0.weight"));
  load = LoadByDeviceMap(*model, values, {{"", "cpu"}});
  model->parameters()[0].data().zero_();
  EXPECT_NE(given.abs().sum().item<float>(), 0);
  load = LoadByDeviceMap(*model, values, {{"", "disk"}});
  EXPECT_TRUE(torch::equal(load.on_disk.at("0.weight"), given));
  // Refusals, and reports.
  auto refused = [&](const DeviceMap& map) {
    return ErrorOf([&] { LoadByDeviceMap(*model, path, map); });
  };
  EXPECT_NE(refused({{"1", "cpu"}}).find("no device for 0.weight, 0.bias"), std::string::npos);
  EXPECT_NE(refused({{"", "tpu"}}).find("unknown device \"tpu\""), std::string::npos);
  EXPECT_NE(refused({{"", "cpu"}, {"0", "disk"}}).find("\"0\" lies within \"\""),
            std::string::npos);
  values.erase("0.bias");
  values.emplace("foo", given);
  EXPECT_NE(ErrorOf([&] {
              LoadByDeviceMap(*model, values, {{"", "cpu"}});
            }).find("missing: \"0.bias\"; unexpected: \"foo\""),
            std::string::npos);
  options.strict = false;
  load = LoadByDeviceMap(*model, values, {{"", "cpu"}}, options);
  EXPECT_EQ(load.report.missing, Names{"0.bias"});
  EXPECT_TRUE(model->parameters()[1].is_meta());  // it was on disk and nothing gave it a value
  // In a scope, every load returns offloaded tensors.
  OffloadScope scope;
  EXPECT_TRUE(std::holds_alternative<OffloadedTensor>(LoadStateDict(path).at("0.bias")));
  EXPECT_EQ(LoadByDeviceMap(*model, path, {}).on_disk.size(), 7u);
}

TEST(SetTensor, UnderEveryName) {
  TwoLinear model(true);
  SetTensor(model, "b.bias", at::kCPU, torch::ones({4}), at::kHalf);
  EXPECT_EQ(model.a->bias.scalar_type(), at::kHalf);
  EXPECT_TRUE(model.a->bias.requires_grad());
  SetTensor(model, "a.weight", at::kMeta);
  EXPECT_TRUE(model.b->weight.is_meta());
  EXPECT_NE(ErrorOf([&] { SetTensor(model, "a.weight", at::kCPU); }).find("give it a value"),
            std::string::npos);
  SetTensor(model, "a.weight", at::kCPU, torch::full({4, 4}, 2));
  EXPECT_EQ(model.b->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(model.b->weight[1][1].item<float>(), 2);
  EXPECT_NE(ErrorOf([&] { SetTensor(model, "b.bais", at::kCPU); }).find("did you mean"),
            std::string::npos);
  torch::nn::Sequential norm;  // buffers, in modules within
  {
    EmptyWeights scope(true);
    norm->push_back(torch::nn::BatchNorm1d(4));
  }
  EXPECT_NE(ErrorOf([&] { SetTensor(*norm, "0.running_mean", at::kCPU); }).find("a value"),
            std::string::npos);
  SetTensor(*norm, "0.running_mean", at::kCPU, torch::ones({4}));
  EXPECT_EQ(norm->named_buffers()["0.running_mean"].sum().item<float>(), 4);
  torch::nn::Linear linear(3, 4);
  EXPECT_EQ(ErrorOf([&] { SetTensor(*linear, "weight", at::kCPU, torch::rand({2, 2})); }),
            "Trying to set a tensor of shape [2, 2] in \"weight\" (which has shape [4, 3]), this "
            "looks incorrect.");
}

TEST(ModelsInTurn, OneSendsTheOtherAway) {
  const std::string folder = TempPath("turns");
  TwoLinear first(true), second(false);
  torch::nn::Sequential none;  // without tensors
  torch::Tensor x = torch::rand({2, 4});
  const torch::Tensor one = first.forward(x), two = second.forward(x);
  ErrorOf([] { ModelsInTurn(at::kCPU); });
  {
    ModelsInTurn turns(at::kCPU, /*files=*/true, folder);
    EXPECT_EQ(turns.Add(first), 0u);
    EXPECT_EQ(turns.Add(second), 1u);
    EXPECT_EQ(turns.Add(*none), 2u);
    EXPECT_TRUE(first.a->weight.is_meta());
    turns.Use(0);
    turns.Use(0);
    EXPECT_TRUE(torch::equal(first.forward(x), one));
    EXPECT_TRUE(second.a->weight.is_meta());
    {
      torch::NoGradGuard no_grad;
      first.a->bias.add_(1);
    }
    turns.Use(1);
    EXPECT_TRUE(torch::equal(second.forward(x), two));
    EXPECT_TRUE(first.a->weight.is_meta() && first.a->weight.is_same(first.b->weight));
    turns.Use(2);
    EXPECT_TRUE(second.a->weight.is_meta());
    turns.Use(0);
    EXPECT_FALSE(torch::equal(first.forward(x), one));  // changes are kept
    turns.Evict();
    EXPECT_TRUE(first.a->bias.is_meta());
    turns.Remove(1);  // for good
    turns.Use(0);
    ErrorOf([&] { turns.Use(3); });
  }
  EXPECT_TRUE(torch::equal(second.forward(x), two));
  EXPECT_EQ(EntriesOf(folder), 0u);
}

}  // namespace
}  // namespace pipewright
