#include "plan/tune/help.h"

#include <algorithm>

#include "plan/actions.h"
#include "plan/lowering/lower.h"
#include "plan/simulate/simulate.h"
#include "plan/tune/predict.h"
#include "plan/tune/search.h"

namespace pipewright {

namespace {

// Returns the step with links `factor` times as fast.
double StepWithLinks(const TuneProblem& problem, const TuneCandidate& candidate, double factor) {
  const TuneProfile& profile = ProfileOfCandidate(problem, candidate);
  Costs costs = CostsOfConf(problem, profile, candidate.conf);
  auto speed_up = [&](LinkCosts& link) {
    link.latency /= factor;
    link.bandwidth *= factor;
  };
  speed_up(costs.link);
  for (auto& [ranks, link] : costs.links) speed_up(link);
  for (LinkCosts& link : costs.within) speed_up(link);
  const Plan order = OrderOfCandidate(candidate);
  return PredictOrder({problem, profile, candidate.conf, costs, order}, "", candidate.recompute,
                      candidate.minibatches)
      .step;
}

void SpeedUp(ProfileLink& link, double factor) {
  link.latency /= factor;
  link.bytes_per_second *= factor;
}

// Returns the problem with links `factor` times as fast.
TuneProblem WithLinks(TuneProblem problem, double factor) {
  for (TuneProfile& profile : problem.profiles)
    for (ProfileLink& link : profile.profile.links) SpeedUp(link, factor);
  for (ProfileLink& link : problem.machines.within) SpeedUp(link, factor);
  SpeedUp(problem.machines.between, factor);
  return problem;
}

// Returns the step of the best candidate; kNoLimit if nothing fits.
double ShortestStep(const TuneProblem& problem) {
  const TuneResult result = SearchTune(problem, 1);
  return result.best.empty() ? kNoLimit : result.best[0].step;
}

// Returns the step, shortened as much as a change shortens the best one. That one may be predicted
// to be shorter than `step`, whose candidate was the fastest when it ran.
double Shortened(double step, double best, double changed) {
  return step * std::min(1.0, changed / best);
}

// Returns the step with a disk `factor` times as fast.
double StepWithDisk(TuneProblem problem, const TuneCandidate& candidate, double factor) {
  problem.disk *= factor;
  return StepWithLinks(problem, candidate, 1);
}

double WorkOf(const ProfileNode& node) {
  return node.forward.median +
         std::min(node.backward.median, node.input_gradient.median + node.weight_gradient.median);
}

// Halves a node, and moves the numbers of those after it. Profiles by module have one node each.
void CutNode(Profile& profile, int module, const std::string& value) {
  const auto at = static_cast<size_t>(module);
  ProfileNode half = profile.nodes[at];
  for (ProfileTime* time :
       {&half.forward, &half.backward, &half.input_gradient, &half.weight_gradient}) {
    time->median /= 2;
    time->spread /= 2;
  }
  for (double* bytes : {&half.kept, &half.kept_for_weight, &half.peak, &half.forward_only_peak,
                        &half.parameters, &half.trained, &half.buffers})
    *bytes /= 2;
  double sent = 0;  // the largest value that the module reads or makes goes between the halves
  for (ProfileValue& each : profile.values) {
    if (each.producer == module || std::count(each.consumers.begin(), each.consumers.end(), module))
      sent = std::max(sent, each.bytes);
    if (each.producer >= module) ++each.producer;
    for (int& consumer : each.consumers) consumer += consumer > module;
  }
  for (ProfileShared& shared : profile.shared)
    for (int& node : shared.nodes) node += node > module;
  profile.nodes[at] = half;
  profile.nodes.insert(profile.nodes.begin() + module, half);
  for (size_t i = 0; i < profile.nodes.size(); ++i) profile.nodes[i].module = static_cast<int>(i);
  profile.values.push_back({value, module, {module + 1}, sent, true});
}

}  // namespace

TuneProblem CutModule(const TuneProblem& problem, int module) {
  TuneProblem made = problem;
  Manifest& manifest = made.manifest;
  const std::string name = manifest.modules[static_cast<size_t>(module)].name + " half";
  for (ValueInfo& value : manifest.values) {
    if (value.producer >= module) ++value.producer;
    for (int& consumer : value.consumers) consumer += consumer > module;
  }
  for (SharedWeight& shared : manifest.shared)
    for (SharedWeight::Holder& holder : shared.holders) holder.module += holder.module > module;
  ValueInfo between;
  between.name = name;
  between.producer = module;
  between.consumers = {module + 1};
  between.gradient = true;
  const int id = static_cast<int>(manifest.values.size());
  manifest.values.push_back(between);
  ModuleInfo first = manifest.modules[static_cast<size_t>(module)];
  first.outputs = {id};
  first.held.clear();
  ModuleInfo& second = manifest.modules[static_cast<size_t>(module)];
  second.inputs = {id};
  for (int input : first.inputs) {
    ValueInfo& value = manifest.values[static_cast<size_t>(input)];
    std::replace(value.consumers.begin(), value.consumers.end(), module + 1, module);
  }
  manifest.modules.insert(manifest.modules.begin() + module, first);
  if (made.loss_module >= module) ++made.loss_module;
  for (TuneProfile& profile : made.profiles) {
    CutNode(profile.profile, module, name);
    if (profile.checks.empty()) continue;
    const auto cut = profile.checks.begin() + module;
    const double half = *cut / 2;
    *cut = half;
    profile.checks.insert(cut, half);
  }
  return made;
}

std::string WhatBinds(const TuneProblem& problem, const TuneCandidate& candidate) {
  constexpr double kClearly = 0.05;  // of the step
  if (candidate.busy >= (1 - kClearly) * candidate.step) return "compute";
  if (!candidate.conf.offloaded_stages.empty() &&
      StepWithDisk(problem, candidate, 1e9) <= (1 - kClearly) * candidate.step)
    return "disk";
  if (StepWithLinks(problem, candidate, 1e9) <= (1 - kClearly) * candidate.step) return "links";
  return candidate.recompute.empty() ? "order" : "memory";
}

std::vector<TuneHelp> WhatHelps(const TuneProblem& problem, const TuneCandidate& candidate,
                                double best) {
  std::vector<TuneHelp> help;
  const double step = candidate.step;
  const bool more = std::any_of(problem.profiles.begin(), problem.profiles.end(),
                                [](const TuneProfile& profile) { return profile.ranks > 1; });
  if (candidate.ranks > 1)
    help.push_back({"links twice as fast", StepWithLinks(problem, candidate, 2)});
  else if (more)
    help.push_back(
        {"links twice as fast", Shortened(step, best, ShortestStep(WithLinks(problem, 2)))});
  if (!candidate.conf.offloaded_stages.empty())
    help.push_back({"a disk twice as fast", StepWithDisk(problem, candidate, 2)});
  const std::vector<ProfileNode>& nodes = ProfileOfCandidate(problem, candidate).profile.nodes;
  const auto slowest = std::max_element(
      nodes.begin(), nodes.end(),
      [](const ProfileNode& a, const ProfileNode& b) { return WorkOf(a) < WorkOf(b); });
  TuneProblem alike = problem;  // with the same ranks, threads and microbatches
  alike.searched = false;
  std::erase_if(alike.profiles, [&](const TuneProfile& p) {
    return p.ranks != candidate.ranks || p.profile.threads != candidate.threads ||
           p.profile.microbatch != candidate.microbatch;
  });
  if (const double finer = ShortestStep(CutModule(alike, slowest->module)); finer < kNoLimit) {
    const double now = ShortestStep(alike);
    help.push_back({"a finer cut around " + slowest->name + ", the slowest module",
                    Shortened(step, now < kNoLimit ? now : step, finer)});
  }
  if (HasLimit(problem)) {
    TuneProblem free = problem;
    free.memory = kNoLimit;
    free.machines.memory.clear();
    if (const double shortest = ShortestStep(free); shortest < kNoLimit)
      help.push_back({"memory without a limit", Shortened(step, best, shortest)});
  }
  std::stable_sort(help.begin(), help.end(),
                   [](const TuneHelp& a, const TuneHelp& b) { return a.step < b.step; });
  return help;
}

std::vector<TraceAction> TimelineOf(const TuneProblem& problem, const TuneCandidate& candidate) {
  constexpr int64_t kActions = 50'000;  // what a picture can show
  const auto stages = static_cast<int64_t>(candidate.conf.stage_to_ranks.size());
  if (3 * stages * candidate.microbatches > kActions) return {};
  const TuneProfile& profile = ProfileOfCandidate(problem, candidate);
  const Costs costs = CostsOfConf(problem, profile, candidate.conf);
  const Plan order = OrderOfCandidate(candidate),
             plan = WholePlan({problem, profile, candidate.conf, costs, order});
  SimulateOptions options;
  options.recompute.assign(static_cast<size_t>(stages), 0);
  for (int stage : candidate.recompute) options.recompute[static_cast<size_t>(stage)] = 1;
  return ActionsOf(plan, Simulate(plan, costs, options));
}

}  // namespace pipewright
