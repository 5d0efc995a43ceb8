#include "plan/placement/kept_bytes.h"

#include <gtest/gtest.h>

namespace pipewright {
namespace {

WeightInfo Weight(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
                  bool trained) {
  WeightInfo info;
  info.name = name, info.dtype = dtype, info.shape = std::move(shape);
  info.requires_grad = trained;
  return info;
}

// Three modules on two ranks. The first and the last share a tensor.
struct Model {
  Manifest manifest;
  Conf conf;
  explicit Model(bool tied_is_trained) {
    const WeightInfo tied = Weight("tied", "float32", {10, 4}, tied_is_trained);  // 160 bytes
    manifest.modules.resize(3);
    manifest.modules[0].held = {tied, Weight("a", "bfloat16", {8}, true)};   // 16 bytes
    manifest.modules[1].held = {Weight("b", "float32", {4, 4}, true),        // 64 bytes
                                Weight("frozen", "float32", {100}, false)};  // 400 bytes
    manifest.modules[2].held = {tied};
    SharedWeight shared;
    shared.holders = {{0, "tied"}, {2, "tied"}};
    manifest.shared = {shared};
    conf.module_to_stage = {0, 1, 0};
    conf.stage_to_ranks = {{0}, {1, 2}};
  }
  KeptBytes Of(int rank, const Job* job = nullptr,
               const std::vector<std::vector<bool>>& on_disk = {}) const {
    return KeptBytesOf(manifest, conf, on_disk, rank, job);
  }
};

TEST(KeptBytes, CountsEachTensorOnce) {
  const Model model(false);
  EXPECT_EQ(model.Of(0).weights, 160 + 16);
  EXPECT_EQ(model.Of(0).Sum(), 160 + 16);
  for (int replica : {1, 2}) EXPECT_EQ(model.Of(replica).Sum(), 64 + 400);
  EXPECT_EQ(model.Of(1, nullptr, {{false, false}, {false, true}, {false}}).Sum(), 64);
}

TEST(KeptBytes, TrainingAddsGradientsAndState) {
  Job job;
  job.optimizer.kind = OptimizerJob::kAdamW;
  EXPECT_EQ(Model(false).Of(0, &job).gradients, 16);
  // Each module steps its own copy of a trained weight.
  const KeptBytes own = Model(true).Of(0, &job);
  EXPECT_EQ(own.weights, 160 + 16 + 160);
  EXPECT_EQ(own.gradients, own.weights);
  EXPECT_EQ(own.optimizer, 2 * own.weights);
  job.optimizer.amsgrad = true;
  EXPECT_EQ(Model(true).Of(1, &job).optimizer, 3 * 64);
  job.optimizer.state_on_disk = true;
  EXPECT_EQ(Model(true).Of(1, &job).optimizer, 0);
}

TEST(KeptBytes, CopiesOfNarrowWeightsAreWide) {
  Job job;
  job.optimizer.momentum = 0.9;
  job.optimizer.master_weights = true;
  const KeptBytes kept = Model(false).Of(0, &job);
  EXPECT_EQ(kept.gradients, 32);
  EXPECT_EQ(kept.optimizer, 32 + 32);  // momentum, and the copy
}

TEST(KeptBytes, MuonKeepsOneTensorAndItsOtherOptimizerTwo) {
  Job job;
  job.optimizer.kind = OptimizerJob::kMuon;
  auto others = std::make_shared<OptimizerJob>();
  others->kind = OptimizerJob::kAdamW;
  job.optimizer.others = others;
  EXPECT_EQ(Model(true).Of(1, &job).optimizer, 64);       // a matrix
  EXPECT_EQ(Model(false).Of(0, &job).optimizer, 2 * 16);  // a vector
}

}  // namespace
}  // namespace pipewright
