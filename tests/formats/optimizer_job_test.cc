#include "formats/optimizer_job.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace pipewright {

static OptimizerJob Read(const std::string& text) {
  return ReadOptimizer(ParseJson(text, "job.json"), "job.json: optimizer", 10);
}

static std::vector<double> Factors(const std::string& schedule, int64_t steps) {
  RateJob rate = Read(R"({"type": "sgd", "lr_schedule": )" + schedule + "}").rate;
  std::vector<double> factors;
  for (int64_t step = 0; step < steps; ++step)
    factors.push_back(std::round(RateFactor(rate, step) * 1e6) / 1e6);
  return factors;
}

using Doubles = std::vector<double>;

TEST(OptimizerJob, Rates) {
  EXPECT_EQ(Factors(R"({"warmup": 4})", 6), (Doubles{0.25, 0.5, 0.75, 1, 1, 1}));
  EXPECT_EQ(Factors(R"({"type": "linear", "warmup": 2, "steps": 6, "end": 0.2})", 8),
            (Doubles{0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2}));
  EXPECT_EQ(Factors(R"({"type": "cosine", "steps": 4})", 6),
            (Doubles{1, 0.853553, 0.5, 0.146447, 0, 0}));
  EXPECT_EQ(Factors(R"({"type": "polynomial", "steps": 4, "power": 2})", 5),
            (Doubles{1, 0.5625, 0.25, 0.0625, 0}));
  EXPECT_EQ(Factors(R"({"type": "step", "warmup": 1, "every": 2, "gamma": 0.5})", 6),
            (Doubles{1, 1, 1, 0.5, 0.5, 0.25}));
}

TEST(OptimizerJob, AScheduleWithoutALengthIsAsLongAsTheRun) {
  RateJob rate;
  rate.kind = RateJob::kLinear;
  EXPECT_EQ(RateFactor(RateOfRun(rate, 4), 2), 0.5);
  rate.steps = 2;
  EXPECT_EQ(RateFactor(RateOfRun(rate, 4), 1), 0.5);
}

TEST(OptimizerJob, TheFirstGroupThatMatchesDecides) {
  OptimizerJob job = Read(R"({"type": "adamw", "lr": 1, "weight_decay": 0.5, "groups": [
      {"match": "*.bias", "weight_decay": 0},
      {"match": ["blocks.[01].*", "head*"], "lr": 2, "weight_decay": 3}]})");
  auto of = [&](std::vector<std::string> names) {
    OptimizerJob own = OptimizerFor(job, names, true);
    return std::pair{own.lr, own.weight_decay};
  };
  EXPECT_EQ(of({"blocks.0.bias"}), (std::pair{1.0, 0.0}));
  EXPECT_EQ(of({"blocks.1.weight"}), (std::pair{2.0, 3.0}));
  EXPECT_EQ(of({"blocks.2.weight"}), (std::pair{1.0, 0.5}));
  EXPECT_EQ(of({"embedding.weight", "head.weight"}), (std::pair{2.0, 3.0}));  // tied
}

TEST(OptimizerJob, MuonIsForMatrices) {
  OptimizerJob job = Read(R"({"type": "muon", "lr": 1, "others": {"type": "adamw", "lr": 2,
      "match": "embedding.*"}, "groups": [{"match": "blocks.*", "lr": 3}]})");
  auto of = [&](const char* name, bool matrix) {
    OptimizerJob own = OptimizerFor(job, {name}, matrix);
    return std::pair{own.kind, own.lr};
  };
  EXPECT_EQ(of("head.weight", true), (std::pair{OptimizerJob::kMuon, 1.0}));
  EXPECT_EQ(of("blocks.0.weight", true), (std::pair{OptimizerJob::kMuon, 3.0}));
  EXPECT_EQ(of("blocks.0.bias", false), (std::pair{OptimizerJob::kAdamW, 3.0}));
  EXPECT_EQ(of("embedding.weight", true), (std::pair{OptimizerJob::kAdamW, 2.0}));
  job = Read(R"({"type": "muon", "state": "disk", "others": {"type": "sgd"}})");
  EXPECT_TRUE(job.state_on_disk && job.others->state_on_disk);
  for (const char* others : {"1", R"({"type": "muon", "others": {"type": "sgd"}})",
                             R"({"type": "sgd", "clip_norm": 1})", R"({"lr": 1})"})
    EXPECT_THROW(Read(R"({"type": "muon", "others": )" + std::string(others) + "}"), Error);
  EXPECT_THROW(Read(R"({"type": "muon"})"), Error);
}

static Manifest ThreeModules() {
  Manifest manifest;
  manifest.values = {{"x", ValueKind::kTensor, "float32", {"4"}, false, -1, {0}, {}},
                     {"a", ValueKind::kTensor, "float32", {"4"}, true, 0, {1}, {}},
                     {"b", ValueKind::kTensor, "float32", {"4"}, true, 1, {2}, {}},
                     {"c", ValueKind::kTensor, "float32", {"4"}, true, 2, {}, {}}};
  for (int m = 0; m < 3; ++m) {
    ModuleInfo module;
    module.inputs = {m}, module.outputs = {m + 1};
    const std::string name = "m" + std::to_string(m) + ".weight";
    module.held = {{name, WeightKind::kParameter, "float32", {4}, true, true}};
    manifest.modules.push_back(module);
  }
  return manifest;
}

TEST(OptimizerJob, NoGradientFlowsWhereNothingIsTrained) {
  Manifest manifest = ThreeModules();
  Freeze(manifest, {"m0.*"}, "freeze");
  EXPECT_FALSE(manifest.modules[0].held[0].requires_grad);
  EXPECT_FALSE(manifest.values[1].gradient);
  EXPECT_TRUE(manifest.values[2].gradient);
  manifest = ThreeModules();
  Freeze(manifest, {"m1.*"}, "freeze");
  for (int value : {1, 2, 3}) EXPECT_TRUE(manifest.values[static_cast<size_t>(value)].gradient);
  EXPECT_EQ(UntrainedModules(manifest), std::vector<std::string>());
  EXPECT_THROW(Freeze(manifest, {"m?.*"}, "freeze"), Error);
  EXPECT_THROW(Freeze(manifest, {"m3.*"}, "freeze"), Error);
}

// With requires_grad edited in the manifest.
TEST(OptimizerJob, EditedWeightsDecideWhichValuesCarryGradients) {
  Manifest manifest = ThreeModules();
  manifest.modules[0].held[0].requires_grad = false;
  Freeze(manifest, {}, "freeze");
  EXPECT_FALSE(manifest.values[1].gradient);
  EXPECT_TRUE(manifest.values[2].gradient);
  EXPECT_EQ(UntrainedModules(manifest), std::vector<std::string>());
  manifest.modules[0].held[0].requires_grad = true;  // compiled frozen: nobody sends its gradient
  Freeze(manifest, {}, "freeze");
  std::vector<std::string> notes = UntrainedModules(manifest);
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("m0.weight requires a gradient"), std::string::npos) << notes[0];
  manifest.shared = {{{{0, "m0.weight"}, {1, "m1.weight"}}}};
  EXPECT_EQ(UntrainedModules(manifest), std::vector<std::string>());  // through the other copy
}

}  // namespace pipewright
