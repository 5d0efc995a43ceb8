#include "plan/tune/forward_only.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "plan/actions.h"
#include "plan/placement/place.h"
#include "plan/run/insert_loads.h"
#include "plan/schedules/schedule.h"
#include "plan/schedules/table.h"

namespace pipewright {

namespace {

constexpr double kSlots = 2;  // for weights on disk, on each rank

bool IsOnDisk(const Conf& conf, int stage) {
  return std::binary_search(conf.offloaded_stages.begin(), conf.offloaded_stages.end(), stage);
}

Offload OffloadOf(const Conf& conf, const Costs& costs) {
  Offload offload;
  offload.stages = conf.offloaded_stages;
  for (const StageCosts& stage : costs.stages) offload.weights.push_back(stage.weights);
  return offload;
}

// Adds the most bytes of values that wait on each rank for its later stages, of all microbatches.
void AddWaiting(const Prospect& prospect, std::vector<double>& peak_bytes) {
  const Conf& conf = prospect.conf;
  const Profile& profile = prospect.profile.profile;
  auto stage_of = [&](int node) {
    return conf
        .module_to_stage[static_cast<size_t>(profile.nodes[static_cast<size_t>(node)].module)];
  };
  auto holds = [&](int stage, int rank) {
    const std::vector<int>& ranks = conf.stage_to_ranks[static_cast<size_t>(stage)];
    return std::count(ranks.begin(), ranks.end(), rank) > 0;
  };
  for (int rank = 0; rank < static_cast<int>(peak_bytes.size()); ++rank) {
    std::map<std::pair<int, int>, double> bytes;  // by the stage that makes and the last that reads
    for (const ProfileValue& value : profile.values) {
      if (value.producer < 0 || !holds(stage_of(value.producer), rank)) continue;
      int last = stage_of(value.producer);
      for (int consumer : value.consumers)
        if (holds(stage_of(consumer), rank)) last = std::max(last, stage_of(consumer));
      if (last > stage_of(value.producer)) bytes[{stage_of(value.producer), last}] += value.bytes;
    }
    if (bytes.empty()) continue;
    std::set<std::pair<int, int>> runs;  // (stage, microbatch)
    const std::vector<Action>& actions = prospect.order.ranks[static_cast<size_t>(rank)];
    for (const Action& action : actions)
      if (HasForward(action)) runs.insert({action.stage, action.microbatch});
    double waiting = 0, most = 0;
    for (const Action& action : actions) {
      if (!HasForward(action)) continue;
      for (const auto& [stages, size] : bytes) {
        const auto [from, to] = stages;
        if (to == action.stage && runs.count({from, action.microbatch})) waiting -= size;
        if (from == action.stage && runs.count({to, action.microbatch})) waiting += size;
      }
      most = std::max(most, waiting);
    }
    peak_bytes[static_cast<size_t>(rank)] += most;
  }
}

// A rank keeps its outputs until the end. Then rank 0 has all of them, and once more in one piece.
void AddOutputs(const Prospect& prospect, double weights, std::vector<double>& peak_bytes) {
  const Manifest& manifest = prospect.problem.manifest;
  const Conf& conf = prospect.conf;
  const int microbatches = prospect.order.microbatches;
  std::map<std::string, double> bytes;
  for (const ProfileValue& value : prospect.profile.profile.values) bytes[value.name] = value.bytes;
  double all = 0;
  for (int id : manifest.outputs) {
    const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
    if (value.producer < 0) continue;
    const std::vector<int>& ranks = conf.stage_to_ranks[static_cast<size_t>(
        conf.module_to_stage[static_cast<size_t>(value.producer)])];
    const auto replicas = static_cast<int>(ranks.size());
    for (int rank : ranks)
      peak_bytes[static_cast<size_t>(rank)] +=
          bytes[value.name] * ((microbatches + replicas - 1) / replicas);
    all += bytes[value.name] * microbatches;
  }
  peak_bytes[0] = std::max(peak_bytes[0], weights + (microbatches > 1 ? 2 : 1) * all);
}

}  // namespace

Plan ForwardOrder(const Conf& conf, int ranks, int microbatches) {
  ScheduleOptions options;
  options.of_run = options.forward_only = true;
  return MakeSchedule(conf.offloaded_stages.empty() ? kForwardSchedule : kOffloadedForwardSchedule,
                      ranks, static_cast<int>(conf.stage_to_ranks.size()), microbatches,
                      conf.stage_to_ranks, options);
}

void InsertForwardLoads(const Conf& conf, const Costs& costs, Plan& plan) {
  if (!conf.offloaded_stages.empty()) InsertLoads(plan, OffloadOf(conf, costs));
}

void AddForwardMemory(const Prospect& prospect, const Plan& plan, std::vector<double>& peak_bytes) {
  const Conf& conf = prospect.conf;
  std::vector<double> slots(peak_bytes.size(), 0), weights = slots;
  std::vector<int> on_disk(peak_bytes.size(), 0);
  for (size_t s = 0; s < conf.stage_to_ranks.size(); ++s)
    for (int rank : conf.stage_to_ranks[s]) {
      const auto r = static_cast<size_t>(rank);
      const double bytes = prospect.costs.stages[s].weights;
      if (!IsOnDisk(conf, static_cast<int>(s))) {
        weights[r] += bytes;
      } else if (bytes > 0) {
        slots[r] = std::max(slots[r], bytes);
        ++on_disk[r];
      }
    }
  for (size_t r = 0; r < slots.size(); ++r) slots[r] *= std::min<double>(on_disk[r], kSlots);
  if (!conf.offloaded_stages.empty()) {
    const std::vector<double> counted = LoadedPeaks(plan, OffloadOf(conf, prospect.costs));
    for (size_t r = 0; r < slots.size(); ++r) peak_bytes[r] += slots[r] - counted[r];
  }
  AddWaiting(prospect, peak_bytes);
  AddOutputs(prospect, weights[0] + slots[0], peak_bytes);
}

std::vector<bool> ResidentModules(const std::vector<int64_t>& bytes, int64_t memory) {
  std::vector<bool> resident(bytes.size(), true);
  if (std::accumulate(bytes.begin(), bytes.end(), int64_t{0}) <= memory) return resident;
  for (size_t m = 0; m < bytes.size(); ++m) resident[m] = bytes[m] == 0;
  int64_t most = -1;
  // Every size may be the largest on disk. All larger modules then stay.
  for (const int64_t largest : std::set<int64_t>(bytes.begin(), bytes.end())) {
    int64_t room = memory - static_cast<int64_t>(kSlots) * largest, kept = 0;
    std::vector<Stay> stays;
    std::vector<size_t> modules;
    for (size_t m = 0; m < bytes.size(); ++m) {
      if (bytes[m] > largest) {
        kept += bytes[m];
      } else if (bytes[m] > 0) {
        stays.push_back({bytes[m], bytes[m], false});
        modules.push_back(m);
      }
    }
    if ((room -= kept) < 0 || largest == 0) continue;
    const std::vector<int> places = MostResident(stays, {room});
    std::vector<bool> choice(bytes.size(), true);
    for (size_t i = 0; i < modules.size(); ++i) {
      choice[modules[i]] = places[i] >= 0;
      if (places[i] >= 0) kept += bytes[modules[i]];
    }
    if (kept > most) most = kept, resident = choice;
  }
  return resident;
}

// Returns `conf` with these modules on disk, each as a stage of its own.
static Conf SplitStages(const Conf& conf, const std::vector<bool>& resident) {
  Conf made;
  made.module_to_stage = conf.module_to_stage;
  for (size_t s = 0; s < conf.stage_to_ranks.size(); ++s) {
    bool apart = true;  // the next module begins a stage
    for (size_t m = 0; m < resident.size(); ++m) {
      if (conf.module_to_stage[m] != static_cast<int>(s)) continue;
      if (apart || !resident[m]) made.stage_to_ranks.push_back(conf.stage_to_ranks[s]);
      const int stage = static_cast<int>(made.stage_to_ranks.size()) - 1;
      made.module_to_stage[m] = stage;
      if (!resident[m]) made.offloaded_stages.push_back(stage);
      apart = !resident[m];
    }
  }
  return made;
}

Conf WithWeightsOnDisk(const TuneProblem& problem, const TuneProfile& profile, const Conf& conf,
                       int microbatches) {
  const size_t ranks = static_cast<size_t>(CountRanks(conf)), count = conf.module_to_stage.size();
  std::vector<int64_t> weights(count, 0), memory(ranks, 0);
  std::vector<std::vector<size_t>> modules(ranks);
  for (const ProfileNode& node : profile.profile.nodes)
    weights[static_cast<size_t>(node.module)] +=
        static_cast<int64_t>(node.parameters + node.buffers);
  for (size_t m = 0; m < count; ++m) {
    const auto stage = static_cast<size_t>(conf.module_to_stage[m]);
    modules[static_cast<size_t>(conf.stage_to_ranks[stage][0])].push_back(m);
  }
  for (size_t r = 0; r < ranks; ++r)
    memory[r] = static_cast<int64_t>(std::min(RankLimit(problem, static_cast<int>(r)), 1e18));
  // The memory of values depends on the stages, so weights get less of it until everything fits.
  constexpr int kTries = 20;
  for (int i = 0;; ++i) {
    std::vector<bool> resident(count, true);
    bool least = true;
    for (size_t r = 0; r < ranks; ++r) {
      std::vector<int64_t> bytes;
      for (size_t m : modules[r]) bytes.push_back(weights[m]);
      const std::vector<bool> stay = ResidentModules(bytes, i < kTries ? memory[r] : 0);
      for (size_t m = 0; m < stay.size(); ++m) {
        resident[modules[r][m]] = stay[m];
        least = least && (!stay[m] || bytes[m] == 0);
      }
    }
    Conf made = SplitStages(conf, resident);
    if (least || i >= kTries) return made;
    const TuneCandidate candidate = Predict(problem, profile, made, kForwardOnly, microbatches, {});
    if (Fits(problem, candidate)) return made;
    for (size_t r = 0; r < ranks; ++r) {
      const double excess = candidate.peak_bytes[r] - RankLimit(problem, static_cast<int>(r));
      if (excess > 0) memory[r] -= static_cast<int64_t>(excess) + 1;
    }
  }
}

}  // namespace pipewright
