#include "plan/tune/job_memory.h"

#include <algorithm>
#include <vector>

#include "plan/placement/kept_bytes.h"
#include "plan/tune/predict.h"

namespace pipewright {

namespace {

constexpr char kLists[] = "lists", kAutograd[] = "autograd";

bool IsOnCpu(const Job& job) { return job.device.empty() || job.device == "cpu"; }

// Returns true if a module may be checked: one microbatch in a thousand runs by autograd's body,
// too. Modules on other devices have no lists.
bool IsChecked(const Job& job, const TuneProblem& problem, const ProfileNode& node) {
  const bool open = !job.body || *job.body == BodyChoice::kAuto;
  return HasLimit(problem) && IsOnCpu(job) && (open || node.body == kLists);
}

// Makes peaks what they are without checks. They are already if all modules compute with autograd.
void LeaveOutChecks(const Job& job, const TuneProblem& problem, TuneProfile& profile) {
  if (profile.body == kAutograd) return;
  for (ProfileNode& node : profile.profile.nodes)
    if (!problem.merges && IsChecked(job, problem, node)) node.peak -= node.trained;
  profile.checks.clear();
}

}  // namespace

void CountOptimizer(const Job& job, TuneProblem& problem) {
  const int modules = static_cast<int>(problem.manifest.modules.size());
  const Conf conf = GroupModules(modules, modules);  // module m on rank m
  for (TuneProfile& each : problem.profiles) {
    if (HasLimit(problem)) each.checks.assign(problem.manifest.modules.size(), 0);
    for (ProfileNode& node : each.profile.nodes) {
      const KeptBytes kept = KeptBytesOf(problem.manifest, conf, {}, node.module, &job);
      // If a step accumulates minibatches, all but the first start with sums of gradients.
      const auto state = static_cast<double>(kept.optimizer) +
                         (job.accumulate > 1 ? static_cast<double>(kept.gradients) : 0);
      node.trained = static_cast<double>(kept.gradients);
      node.buffers += state;
      node.peak += state;  // which includes parameters and buffers
      if (!IsChecked(job, problem, node)) continue;
      double& check = each.checks[static_cast<size_t>(node.module)];
      check += node.kept;
      (problem.merges ? check : node.peak) += node.trained;
    }
  }
}

bool UseAutograd(const Job& job, TuneProblem& problem) {
  if (job.body || !HasLimit(problem) || !IsOnCpu(job)) return false;
  for (TuneProfile& each : problem.profiles) {
    if (each.body == kAutograd) return false;  // they do already
    LeaveOutChecks(job, problem, each);
    each.body = kAutograd;
    for (ProfileNode& node : each.profile.nodes) node.body = kAutograd;
  }
  return true;
}

std::vector<double> CheckBytes(const Job& job, const TuneProblem& problem,
                               const TuneCandidate& candidate) {
  std::vector<double> bytes(candidate.peak_bytes.size(), 0);
  if (candidate.body == kAutograd) return bytes;
  TuneProblem without = problem;
  for (TuneProfile& each : without.profiles) LeaveOutChecks(job, problem, each);
  const TuneProfile& profile = ProfileOfCandidate(without, candidate);
  const Costs costs = CostsOfConf(without, profile, candidate.conf);
  const Plan order = OrderOfCandidate(candidate);
  const TuneCandidate predicted =
      PredictOrder({without, profile, candidate.conf, costs, order}, candidate.schedule,
                   candidate.recompute, candidate.minibatches);
  for (size_t rank = 0; rank < bytes.size(); ++rank)
    bytes[rank] = std::max(0.0, candidate.peak_bytes[rank] - predicted.peak_bytes[rank]);
  return bytes;
}

int64_t GradientBytes(const Job& job, const TuneProblem& problem, const Conf& conf, int rank) {
  return KeptBytesOf(problem.manifest, conf, {}, rank, &job).gradients;
}

}  // namespace pipewright
