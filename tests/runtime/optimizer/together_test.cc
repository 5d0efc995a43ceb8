// Compares updates of many parameters with those of each by itself, on CPUs, for which LibTorch has
// the same operators.
#include "runtime/optimizer/together.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace pipewright {
namespace {

constexpr OptimizerJob::Kind kKinds[] = {OptimizerJob::kSgd, OptimizerJob::kAdam,
                                         OptimizerJob::kAdamW, OptimizerJob::kRmsprop,
                                         OptimizerJob::kAdagrad};

TEST(Together, OnCudaOnlyAndNotForMuon) {
  OptimizerJob job;
  for (const auto kind : kKinds) {
    job.kind = kind;
    EXPECT_TRUE(UpdatesTogether(c10::Device("cuda:1"), job));
    EXPECT_FALSE(UpdatesTogether(at::kCPU, job));
    EXPECT_FALSE(UpdatesTogether(at::kPrivateUse1, job));
  }
  job.state_on_disk = true;
  EXPECT_FALSE(UpdatesTogether(c10::Device("cuda:1"), job));
  job.state_on_disk = false;
  job.kind = OptimizerJob::kMuon;
  EXPECT_FALSE(UpdatesTogether(c10::Device("cuda:1"), job));
}

struct Trained {
  at::Tensor parameter;
  OptimizerState state;
};

// Parameters of several sizes, types and layouts; some are complex or transposed.
std::vector<Trained> Parameters() {
  std::vector<Trained> all;
  for (const at::Tensor& parameter :
       {at::randn({70, 50}), at::randn({13}), at::randn({}), at::randn({5, 7}).t(),
        at::randn({9}, at::kDouble), at::randn({6}, at::kComplexFloat), at::randn({33})})
    all.push_back({parameter, {}});
  return all;
}

std::vector<OptimizerJob> Jobs() {
  std::vector<OptimizerJob> jobs;
  for (const auto kind : kKinds)
    for (int choice = 0; choice < 16; ++choice) {
      OptimizerJob job;
      job.kind = kind;
      job.lr = 0.05;
      if (choice & 1) job.momentum = 0.9, job.dampening = 0.3;
      if (choice & 2) job.weight_decay = 0.1;
      if (choice & 4) job.amsgrad = job.centered = true, job.initial_accumulator = 0.5;
      if (choice & 8) job.lr_decay = 0.1;
      if ((choice & 8) && (choice & 1)) job.nesterov = true, job.dampening = 0;
      jobs.push_back(job);
    }
  return jobs;
}

TEST(Together, IsWhatEachByItselfIs) {
  for (const OptimizerJob& job : Jobs()) {
    std::vector<Trained> alone = Parameters(), together;
    for (const Trained& one : alone) together.push_back({one.parameter.clone(), {}});
    for (int step = 0; step < 4; ++step) {
      OptimizerJob now = job;
      now.lr = job.lr / (step + 1);
      std::vector<ParameterUpdate> updates;
      for (size_t i = 0; i < alone.size(); ++i) {
        if (i == 1 && step == 1) continue;  // its steps then differ from the others'
        at::Tensor gradient = at::randn_like(alone[i].parameter);
        const int64_t divisor = i < 3 ? 4 : 1;
        updates.push_back(
            {&job, now.lr, together[i].parameter, gradient.clone(), &together[i].state, divisor});
        OptimizerStep(now, alone[i].parameter, gradient, alone[i].state, divisor);
      }
      OptimizerStepTogether(updates);
      for (size_t i = 0; i < alone.size(); ++i) {
        ASSERT_EQ(alone[i].state.steps, together[i].state.steps);
        ASSERT_TRUE(at::allclose(alone[i].parameter, together[i].parameter, 1e-5, 1e-6))
            << "kind " << job.kind << ", step " << step << ", parameter " << i;
        auto wanted = alone[i].state.Named(), found = together[i].state.Named();
        for (size_t k = 0; k < wanted.size(); ++k) {
          ASSERT_EQ(wanted[k].second->defined(), found[k].second->defined());
          if (!wanted[k].second->defined()) continue;
          ASSERT_TRUE(at::allclose(*wanted[k].second, *found[k].second, 1e-5, 1e-6))
              << wanted[k].first << " of kind " << job.kind << ", step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pipewright
