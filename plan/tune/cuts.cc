#include "plan/tune/cuts.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "plan/partition/io/request.h"
#include "plan/partition/solve.h"
#include "plan/tune/predict.h"

namespace pipewright {

static void AddLoss(const TuneProfile& profile, ProfileNode& node) {
  node.forward.median += profile.loss_forward;
  node.backward.median += profile.loss_backward;
  node.input_gradient.median += profile.loss_backward;
  node.kept += profile.loss_kept;
}

// Limits each device to the memory of its rank. Stages that share a rank are on devices of their
// own, each of which may have what the largest rank has.
static void LimitDevices(const TuneProblem& problem, int ranks, bool one_each,
                         PartitionRequest& request) {
  double most = 0;
  for (int rank = 0; rank < ranks; ++rank) most = std::max(most, RankLimit(problem, rank));
  for (int device = 0; device < request.devices; ++device)
    request.memories.push_back(std::to_string(one_each ? RankLimit(problem, device) : most));
}

// Gives the devices the speeds of their ranks, or the mean speed if stages share ranks, and the
// link of machines that are not at hand: that between machines if there are several.
static void DescribeMachines(const TuneMachines& machines, int ranks, bool one_each,
                             PartitionRequest& request) {
  if (machines.speeds.empty()) return;
  const auto begin = machines.speeds.begin();
  if (one_each)
    request.speeds.assign(begin, begin + request.devices);
  else
    request.speeds.assign(static_cast<size_t>(request.devices),
                          std::accumulate(begin, begin + ranks, 0.0) / ranks);
  const int first = machines.machine[0], last = machines.machine[static_cast<size_t>(ranks) - 1];
  const ProfileLink& link =
      first == last ? machines.within[static_cast<size_t>(first)] : machines.between;
  request.bandwidths = {link.bytes_per_second};
  request.latency = link.latency;
}

std::optional<Conf> CutInto(const TuneProblem& problem, const CutChoice& choice) {
  const Profile& profile = choice.profile->profile;
  PartitionInput input;
  input.kind = PartitionInput::kProfile;
  input.profile = profile;
  for (ProfileNode& node : input.profile.nodes)
    if (node.module == LossModule(problem)) AddLoss(*choice.profile, node);
  PartitionRequest request;
  request.stages = choice.stages;
  const bool any = choice.ranks > 0 && choice.ranks <= kAnyReplicas;
  const int equal = choice.ranks > kAnyReplicas ? choice.ranks / choice.stages : 1;
  request.devices = any ? choice.ranks : choice.stages;
  request.replicas = any ? choice.ranks : 1;
  request.optimizer_state = 0;  // CountOptimizer has added it to the modules
  const bool one_each = request.devices <= choice.profile->ranks && equal == 1;
  DescribeMachines(problem.machines, choice.profile->ranks, one_each, request);
  if (choice.memory) LimitDevices(problem, choice.profile->ranks, one_each, request);
  ProfileProblem nodes;
  const PartitionProblem cut = MakeProblem(input, request, nodes);
  SolveOptions options;
  options.max_sets = 200'000;  // a second at most
  const PartitionResult found = SolvePartition(cut, options);
  if (!found.feasible) return std::nullopt;
  Conf conf;
  conf.module_to_stage.assign(problem.manifest.modules.size(), 0);
  int device = 0;
  for (size_t s = 0; s < found.stages.size(); ++s) {
    const PartitionStage& stage = found.stages[s];
    for (int node : stage.nodes)
      conf.module_to_stage[static_cast<size_t>(profile.nodes[static_cast<size_t>(node)].module)] =
          static_cast<int>(s);
    const int replicas = stage.replicas * equal;
    std::vector<int> ranks;
    if (equal == 1) ranks = stage.numbers;
    for (int r = static_cast<int>(ranks.size()); r < replicas; ++r) ranks.push_back(device + r);
    device += replicas;
    conf.stage_to_ranks.push_back(ranks);
  }
  return conf;
}

const std::optional<Conf>& TuneCuts::At(const CutChoice& choice) {
  const auto [cut, is_new] = cuts_.try_emplace(choice);
  if (is_new) cut->second = CutInto(problem_, choice);
  return cut->second;
}

}  // namespace pipewright
