// Tests the parts of a profile, except for the times themselves.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>

#include "runtime/measure/links.h"
#include "runtime/measure/measure_package.h"
#include "runtime/measure/metered_stages.h"
#include "runtime/measure/module_parts.h"
#include "runtime/measure/module_times.h"
#include "runtime/measure/profile.h"
#include "runtime/measure/samples.h"
#include "runtime/module/messages.h"
#include "tests/error_text.h"
#include "tests/runtime/small_package.h"

namespace pipewright {
namespace {

TEST(MeasureLinks, OfEveryOrderedPairAndTheSameOnAllRanks) {
  std::vector<std::vector<ProfileLink>> found(3);
  RunThreads(3, [&](Transport& transport) {
    found[transport.rank()] = MeasureLinks(transport, 2, 1 << 12);
  });
  std::vector<std::pair<int, int>> pairs;
  for (const ProfileLink& link : found[0]) {
    pairs.emplace_back(link.from, link.to);
    EXPECT_GT(link.latency, 0);
    EXPECT_GT(link.bytes_per_second, 0);
  }
  EXPECT_EQ(pairs,
            (std::vector<std::pair<int, int>>{{0, 1}, {0, 2}, {1, 0}, {1, 2}, {2, 0}, {2, 1}}));
  for (int rank : {1, 2})
    for (size_t i = 0; i < pairs.size(); ++i) {
      EXPECT_EQ(found[rank][i].latency, found[0][i].latency);
      EXPECT_EQ(found[rank][i].bytes_per_second, found[0][i].bytes_per_second);
    }
}

TEST(TimingOf, QuartilesAndNoise) {
  const Timing timing = TimingOf({5, 1, 3, 2, 4});
  EXPECT_EQ(std::tuple(timing.low, timing.median, timing.high), std::tuple(2., 3., 4.));
  const Timing two = TimingOf({2, 1});
  EXPECT_EQ(std::tuple(two.low, two.median, two.high), std::tuple(1.25, 1.5, 1.75));
  EXPECT_EQ(TimingOf({}).median, 0);
  EXPECT_TRUE(IsNoisy(1e-3, 1.1e-4));
  EXPECT_FALSE(IsNoisy(1e-3, 0.9e-4));
  EXPECT_FALSE(IsNoisy(5e-5, 1));  // too short to tell
}

TEST(ModuleTimer, CountsTheBytesThatBackwardNeeds) {
  const LoadedModule module = LoadModule(SmallPackage("timer.pkg"), SmallManifest(), 0);
  const at::Tensor x = at::ones({1000, 3});
  const int64_t bytes = 12000;
  ModuleTimer timer;
  const ModuleTimes times = timer.Add(module, {x}, {true});
  EXPECT_TRUE(at::equal(times.outputs[0].toTensor(), x * at::tensor({1.f, 2.f, 3.f})));
  EXPECT_FALSE(times.outputs[0].toTensor().requires_grad());
  EXPECT_EQ(times.gradients, std::vector<bool>{true});
  EXPECT_EQ(times.held_inputs, std::vector<bool>{true});  // for the gradient of scale
  EXPECT_GE(times.peak_bytes, bytes);
  EXPECT_GE(times.forward_only_bytes, bytes);
  EXPECT_LT(times.forward_only_bytes, 2 * bytes);
  timer.Round(false);
  EXPECT_EQ(timer.rounds(), 0u);
  timer.Round(true);
  EXPECT_EQ(timer.rounds(), 1u);
  ModuleTimes taken = times;
  timer.TakeTimes(0, taken);
  EXPECT_GT(taken.forward.median, 0);
  EXPECT_GT(taken.input_grad.median, 0);
}

// A body whose stage keeps 1000 floats of a microbatch, and sends 100.
struct Keeping : StageBody {
  at::Tensor kept, sums;
  Bundle Allocate(int, int, bool, int, bool) override { return {}; }
  std::vector<Bundle> Forward(int, int, std::vector<Bundle>) override {
    const at::Tensor scratch = at::empty({5000});
    kept = at::empty({1000});
    return {MakeBundle({at::empty({100})})};
  }
  std::vector<Bundle> Backward(ActionKind, int, int, std::vector<Bundle>) override {
    if (!sums.defined()) sums = at::empty({300});
    kept.reset();
    return {};
  }
  Bundle Gradient(int, int) override { return {}; }
  Bundle Scratch(int) override { return {}; }
  void Add(const Bundle&, const Bundle&) override {}
  void Copy(const Bundle&, const Bundle&) override {}
  void OnReady(std::function<void(int)>) override {}
  void Step(int) override { at::empty({700}); }
};

TEST(MeteredStages, TellWhatAStageHolds) {
  MemoryMeter meter;
  Keeping body;
  MeteredStages metered(body, meter);
  for (int microbatch : {0, 1}) {
    std::vector<Bundle> inputs(1);
    inputs[0] = MakeBundle({at::empty({50})});
    metered.Forward(2, microbatch, std::move(inputs));
    metered.Backward(ActionKind::kBackward, 2, microbatch, {});
  }
  metered.Step(2);
  ASSERT_EQ(metered.bytes().size(), 1u);
  const StageBytes& bytes = metered.bytes().at(2);
  EXPECT_EQ(bytes.activation, 4000);
  EXPECT_EQ(bytes.received, 0);  // the stage dropped its input
  EXPECT_EQ(bytes.gradients, 1200);
  EXPECT_EQ(bytes.peak.F, 4 * (5000 + 1000 + 100 + 50));
  EXPECT_EQ(bytes.peak.first_B, 4 * (1000 + 300));
  EXPECT_EQ(bytes.peak.B, 4 * 1000);
  EXPECT_EQ(bytes.peak.step, 2800);
  EXPECT_GE(metered.peak(), bytes.peak.F);
}

// Parts in a row compute what the whole module computes.
TEST(Parts, AreCutWhereTheCommentsChange) {
  auto cut = [](const std::string& body) {
    const std::string package = SmallPackage("parts.pkg");
    std::string code = kScaleCode;
    code.erase(code.find("    return "));
    WriteFile(package + "/modules/module0.py", code + body);
    const LoadedModule module = LoadModule(package, SmallManifest(), 0);
    const ModuleParts parts = CutIntoParts(module, SmallManifest().modules[0]);
    const at::Tensor x = at::arange(6, at::kFloat).view({2, 3});
    std::vector<c10::IValue> values(static_cast<size_t>(std::max(parts.values, 1)));
    values[0] = x;
    std::vector<std::string> labels;
    for (const ModulePart& part : parts.parts) {
      labels.push_back(part.label);
      std::vector<c10::IValue> stack = {part.module.self};
      for (int input : part.inputs) stack.push_back(values[input]);
      torch::jit::InterpreterState(*part.module.code).run(stack);
      EXPECT_EQ(stack.size(), part.outputs.size());
      for (size_t i = 0; i < stack.size(); ++i) values[part.outputs[i]] = stack[i];
      EXPECT_EQ(part.held.size(), part.module.weights.size());
    }
    EXPECT_TRUE(at::equal(values[parts.outputs.at(0)].toTensor(),
                          pipewright::Run(module, {x})[0].toTensor()));
    return labels;
  };
  using Labels = std::vector<std::string>;
  EXPECT_EQ(cut("    # blocks.0  model.py:3: x = x * s\n    y = torch.mul(x, scale)\n"
                "    z = torch.relu(y)\n"
                "    # blocks.1  model.py:4: x = x + s\n    u = torch.add(z, scale)\n"
                "    return torch.add(u, x)\n"),
            (Labels{"blocks.0", "blocks.1"}));
  // A value stays in the part that writes to its memory, and so do lists.
  EXPECT_EQ(cut("    # a\n    y = torch.mul(x, scale)\n    # b\n    z = torch.relu_(y)\n"
                "    # c\n    return torch.add(y, x)\n"),
            (Labels{"a", "c"}));
  EXPECT_EQ(cut("    # a\n    y = torch.chunk(torch.mul(x, scale), 3, 1)\n"
                "    # b\n    return torch.cat(y, 1)\n")
                .size(),
            1u);
}

TEST(SampleInputs, ComeFromTheFileOrThePackageOrAreRandom) {
  const std::string package = SmallPackage("samples.pkg"), file = TempPath("rows.safetensors");
  auto write = [](const std::string& path, std::vector<float> rows) {
    const int64_t count = static_cast<int64_t>(rows.size()) / 3;
    WriteSafetensors(
        path,
        {{"x", "F32", {count, 3}, {reinterpret_cast<const char*>(rows.data()), rows.size() * 4}}});
  };
  std::string source;
  auto sample = [&](const std::string& path, int64_t& microbatch) {
    return SampleInputs(package, SmallManifest(), path, microbatch, source)[0].toTensor();
  };
  int64_t microbatch = 4;
  EXPECT_EQ(sample("", microbatch).sizes().vec(), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(source, "random numbers");
  write(package + "/samples.safetensors", {1, 2, 3, 4, 5, 6});
  microbatch = 0;
  EXPECT_EQ(sample("", microbatch).size(0), 2);
  EXPECT_EQ(microbatch, 2);
  EXPECT_EQ(source, package + "/samples.safetensors");
  write(file, {7, 8, 9, 1, 1, 1});
  microbatch = 3;
  EXPECT_TRUE(at::equal(sample(file, microbatch),
                        at::tensor({7.f, 8.f, 9.f, 1.f, 1.f, 1.f, 7.f, 8.f, 9.f}).view({3, 3})));
  microbatch = 1;
  EXPECT_TRUE(at::equal(sample(file, microbatch), at::tensor({7.f, 8.f, 9.f}).view({1, 3})));
  const at::Tensor one = at::zeros({2});
  WriteSafetensors(file, {{"z", "F32", {2}, {static_cast<const char*>(one.data_ptr()), 8}}});
  const std::string error = ErrorOf([&] { sample(file, microbatch); });
  EXPECT_NE(error.find(file), std::string::npos) << error;
  EXPECT_NE(error.find("\"x\""), std::string::npos) << error;
}

TEST(Profile, OfAPackageOnTwoRanks) {
  ProfileOptions options;
  options.package = SmallPackage("profile.pkg");
  options.microbatch = 5;
  options.repeat = options.warm_up = 1;
  int checked = 0, shown = 0;
  MeasureOnRanks(
      options, 2, [&] { ++checked; },
      [&](const Profile& profile, const std::string& source) {
        ++shown;
        EXPECT_EQ(source, "random numbers");
        EXPECT_EQ(profile.microbatch, 5);
        ASSERT_EQ(profile.nodes.size(), 2u);
        EXPECT_EQ(profile.links.size(), 2u);
        for (int m : {0, 1}) {
          EXPECT_EQ(profile.nodes[m].module, m);
          EXPECT_EQ(profile.nodes[m].rank, m);
          EXPECT_EQ(profile.nodes[m].parameters, 12);
          EXPECT_EQ(profile.nodes[m].trained, 12);
          EXPECT_GT(profile.nodes[m].forward.median, 0);
        }
        EXPECT_EQ(profile.nodes[1].input_gradient.median > 0, true);
        ASSERT_EQ(profile.values.size(), 3u);
        EXPECT_EQ(profile.values[1].name, "y");
        EXPECT_EQ(profile.values[1].bytes, 60);
        EXPECT_EQ(profile.values[1].consumers, std::vector<int>{1});
        CheckProfile(profile, SmallManifest(), "p");
        CheckProfile(ParseProfile(WriteProfile(profile), "p"), SmallManifest(), "p");
      });
  EXPECT_EQ(std::pair(checked, shown), std::pair(1, 1));
  EXPECT_EQ(ErrorOf([&] {
              MeasureOnRanks(
                  options, 2, [] { throw Error("out", "is there"); },
                  [&](const Profile&, const std::string&) { ++shown; });
            }),
            "opening outputs on rank 0: out: is there");
  EXPECT_EQ(shown, 1);
}

TEST(Profile, OfForwardsOnly) {
  ProfileOptions options;
  options.package = SmallPackage("forwards.pkg");
  options.microbatch = 5;
  options.repeat = options.warm_up = 1;
  auto measure = [&](int ranks) {
    Profile found;
    MeasureOnRanks(
        options, ranks, [] {},
        [&](const Profile& profile, const std::string&) { found = profile; });
    return found;
  };
  const Profile whole = measure(1);
  options.forward_only = true;
  for (int ranks : {1, 2}) {
    const Profile profile = measure(ranks);
    CheckProfile(ParseProfile(WriteProfile(profile), "p"), SmallManifest(), "p");
    ASSERT_EQ(profile.nodes.size(), whole.nodes.size());
    EXPECT_EQ(profile.links.size(), ranks == 1 ? 0u : 2u);
    for (size_t m = 0; m < profile.nodes.size(); ++m) {
      const ProfileNode &node = profile.nodes[m], &other = whole.nodes[m];
      EXPECT_EQ(node.rank, ranks == 1 ? 0 : static_cast<int>(m));
      EXPECT_GT(node.forward.median, 0);
      EXPECT_EQ(node.backward.median + node.input_gradient.median + node.weight_gradient.median, 0);
      EXPECT_EQ(node.kept + node.kept_for_weight + node.trained, 0);
      EXPECT_TRUE(node.held.empty());
      EXPECT_EQ(node.parameters, other.parameters);
      EXPECT_EQ(node.forward_only_peak, other.forward_only_peak);
    }
    for (size_t v = 0; v < profile.values.size(); ++v) {
      EXPECT_EQ(profile.values[v].bytes, whole.values[v].bytes);
      EXPECT_FALSE(profile.values[v].gradient);
    }
  }
}

}  // namespace
}  // namespace pipewright
