#include "runtime/optimizer/optimizer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "formats/optimizer_state.h"

namespace pipewright {

TEST(Optimizer, KeepsAsManyTensorsAsPlansCount) {
  for (auto kind : {OptimizerJob::kSgd, OptimizerJob::kAdam, OptimizerJob::kAdamW,
                    OptimizerJob::kRmsprop, OptimizerJob::kAdagrad, OptimizerJob::kMuon})
    for (int choice = 0; choice < 8; ++choice) {
      OptimizerJob job;
      job.kind = kind;
      job.momentum = choice & 1 ? 0.9 : 0;
      job.amsgrad = choice & 2;
      job.centered = choice & 4;
      at::Tensor parameter = at::ones({2, 3}), gradient = at::ones({2, 3});
      OptimizerState state;
      OptimizerStep(job, parameter, gradient, state);
      int kept = 0;
      for (const auto& [name, tensor] : state.Named()) kept += tensor->defined();
      EXPECT_EQ(StateTensorsPerParameter(job), kept) << kind << " " << choice;
    }
}

// Updates large tensors block by block, as if each piece were a parameter of its own.
TEST(Optimizer, LargeAsSmall) {
  std::vector<OptimizerJob> jobs;
  for (auto kind : {OptimizerJob::kSgd, OptimizerJob::kAdam, OptimizerJob::kAdamW,
                    OptimizerJob::kRmsprop, OptimizerJob::kAdagrad})
    for (bool rich : {false, true}) {
      OptimizerJob job;
      job.kind = kind;
      job.lr = 0.1;
      if (rich) {
        job.weight_decay = 0.01, job.momentum = 0.9, job.dampening = 0.3, job.lr_decay = 0.1;
        job.amsgrad = job.centered = true, job.initial_accumulator = 0.5;
      }
      jobs.push_back(job);
    }
  const int64_t elements = 300'017, piece = 4096;
  for (const OptimizerJob& job : jobs) {
    at::Tensor large = at::randn({elements}), small = large.clone();
    OptimizerState state;
    std::vector<OptimizerState> states(elements / piece + 1);
    for (int step = 0; step < 3; ++step) {
      at::Tensor gradient = at::randn({elements}), divided = gradient / 4;
      OptimizerStep(job, large, gradient, state, 4);
      for (size_t i = 0; i < states.size(); ++i) {
        const int64_t at = static_cast<int64_t>(i) * piece, n = std::min(piece, elements - at);
        at::Tensor parameter = small.narrow(0, at, n), part = divided.narrow(0, at, n);
        OptimizerStep(job, parameter, part, states[i]);
      }
      ASSERT_TRUE(at::equal(large, small)) << job.kind << " step " << step;
    }
    // A transposed one is updated as a whole.
    at::Tensor whole = at::randn({300, 1000}), transposed = whole.t(), apart = whole.clone();
    OptimizerState one, other;
    at::Tensor gradient = at::randn({300, 1000}), turned = gradient.t();
    OptimizerStep(job, transposed, turned, one, 1);
    OptimizerStep(job, apart, gradient, other, 1);
    EXPECT_TRUE(at::equal(whole, apart)) << job.kind;
  }
}

// Factors are not rounded: in bfloat16, beta2 = 0.999 would be 1, and nothing would decay.
TEST(Optimizer, FactorsOfSixteenBitStatesAreNotRounded) {
  for (at::ScalarType dtype : {at::kBFloat16, at::kHalf})
    for (auto kind : {OptimizerJob::kSgd, OptimizerJob::kAdam, OptimizerJob::kRmsprop}) {
      OptimizerJob job;
      job.kind = kind;
      job.lr = 0.1, job.momentum = 0.93, job.beta2 = job.alpha = 0.97;
      at::Tensor parameter = at::randn({100}).to(dtype), gradient = at::randn({100}).to(dtype);
      OptimizerState state;
      OptimizerStep(job, parameter, gradient, state);
      const bool sgd = kind == OptimizerJob::kSgd;
      at::Tensor& kept = sgd ? state.momentum : state.average_sq;
      const at::Tensor expected = (kept.to(at::kFloat) * (sgd ? 0.93 : 0.97)).to(dtype);
      gradient = at::zeros_like(parameter);
      OptimizerStep(job, parameter, gradient, state);
      EXPECT_TRUE(at::equal(kept, expected)) << kind << " " << dtype;
    }
}

}  // namespace pipewright
