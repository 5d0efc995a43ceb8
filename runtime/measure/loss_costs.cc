#include "runtime/measure/loss_costs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/median.h"
#include "runtime/exec/clock.h"
#include "runtime/optimizer/loss.h"
#include "runtime/stage/run_backward.h"
#include "runtime/trial/shapes.h"

namespace pipewright {

namespace {

// Holds what a loss is computed from.
struct LossInputs {
  const LossJob& job;
  at::Tensor output;
  TensorSpec target;
};

// Computes all losses, also the hits for an accuracy, and then all gradients. `await` waits for the
// device.
LossCosts CostsOf(const std::vector<LossInputs>& inputs, bool accuracy, MemoryMeter& meter,
                  const std::function<void()>& await) {
  const int64_t before = meter.live();
  meter.ResetPeak();
  const double begin = Now();
  std::vector<at::Tensor> losses, gradients;
  for (const auto& [job, output, spec] : inputs) {
    const at::Tensor target = at::zeros(spec.sizes, at::dtype(spec.type));
    losses.push_back(Loss(job, output, target, "target"));
    if (accuracy && job.HasClasses()) LossHits(job, output.detach(), target);
  }
  await();
  const double middle = Now();
  const int64_t kept = std::max<int64_t>(0, meter.live() - before);
  for (size_t i = 0; i < losses.size(); ++i) {
    const at::Tensor loss = std::move(losses[i]);
    gradients.push_back(
        RunBackward(EdgesOf({loss}), {at::ones_like(loss)}, EdgesOf({inputs[i].output}))[0]);
  }
  await();
  return {kept, std::max(kept, meter.peak() - before), middle - begin, Now() - middle};
}

}  // namespace

std::map<int, LossCosts> MeasureLosses(Session& session, Microbatches& source, MemoryMeter& meter) {
  const RunPlan& run = session.run;
  const auto rank = session.transport.rank();
  const std::shared_ptr<const std::vector<TensorSpec>> values = session.Shapes(source.Specs(0, 0));
  const auto device = c10::Device(session.devices[static_cast<size_t>(rank)]);
  const std::vector<int>& stages = session.stages->loss_stages();
  std::map<int, std::vector<LossInputs>> inputs;  // by stage
  for (size_t k = 0; k < stages.size(); ++k) {
    const std::vector<int>& holders = run.conf.stage_to_ranks[static_cast<size_t>(stages[k])];
    if (!std::count(holders.begin(), holders.end(), rank)) continue;
    const LossJob& job = session.job.losses[k];
    const auto value = static_cast<size_t>(run.manifest.outputs[static_cast<size_t>(job.output)]);
    if (job.kind == LossJob::kOutput || !run.manifest.values[value].gradient) continue;
    const TensorSpec target = source.Target(static_cast<int>(k), 0, 0);
    const TensorSpec& spec = (*values)[value];
    if (!spec.known || !target.known) continue;
    at::Tensor output = at::zeros(spec.sizes, at::dtype(spec.type).device(device));
    inputs[stages[k]].push_back({job, output.requires_grad_(true), target});
  }
  constexpr int kTimes = 5;
  std::map<int, LossCosts> costs;
  for (const auto& [stage, of_stage] : inputs) {
    std::vector<double> forward, backward;
    for (int i = 0; i < kTimes; ++i) {
      costs[stage] = CostsOf(of_stage, session.job.accuracy, meter, [&] { session.AwaitDevice(); });
      forward.push_back(costs[stage].forward);
      backward.push_back(costs[stage].backward);
    }
    costs[stage].forward = Median(forward);
    costs[stage].backward = Median(backward);
  }
  return costs;
}

}  // namespace pipewright
