#include "plan/tune/job_memory.h"

#include "plan/placement/kept_bytes.h"

namespace pipewright {

void CountOptimizer(const Job& job, TuneProblem& problem) {
  const int modules = static_cast<int>(problem.manifest.modules.size());
  const Conf conf = GroupModules(modules, modules);  // module m on rank m
  const bool limited = problem.memory < kNoLimit || !problem.machines.memory.empty();
  for (TuneProfile& each : problem.profiles)
    for (ProfileNode& node : each.profile.nodes) {
      const KeptBytes kept = KeptBytesOf(problem.manifest, conf, {}, node.module, &job);
      // If a step accumulates minibatches, all but the first start with sums of gradients.
      const auto state = static_cast<double>(kept.optimizer) +
                         (job.accumulate > 1 ? static_cast<double>(kept.gradients) : 0);
      node.trained = static_cast<double>(kept.gradients);
      node.buffers += state;
      node.peak += state;  // which includes parameters and buffers
      // One microbatch in a thousand also runs by autograd's body, to check the lists.
      if (limited && node.body == "lists") node.peak += node.kept + node.trained;
    }
}

int64_t GradientBytes(const Job& job, const TuneProblem& problem, const Conf& conf, int rank) {
  return KeptBytesOf(problem.manifest, conf, {}, rank, &job).gradients;
}

}  // namespace pipewright
