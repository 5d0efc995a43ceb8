#include "plan/run/insert_loads.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "plan/actions.h"
#include "plan/simulate/costs.h"
#include "plan/simulate/memory.h"

namespace pipewright {

namespace {

double BytesOf(const Offload& offload, int stage) {
  return offload.weights.empty() ? 1 : offload.weights[stage];
}

bool IsOffloaded(const Offload& offload, int stage) {
  return std::binary_search(offload.stages.begin(), offload.stages.end(), stage);
}

// Returns the stages whose weights an action needs; two for a pair.
std::vector<int> Needs(const Action& a, const Offload& offload) {
  std::vector<int> stages;
  if (HasForward(a) || (a.kind == ActionKind::kStep && offload.step)) stages.push_back(a.stage);
  const int back = BackwardStage(a);
  if ((HasBackward(a) || (a.kind == ActionKind::kWeightGrad && offload.weight_grad)) &&
      !std::binary_search(offload.forward_only.begin(), offload.forward_only.end(), back) &&
      (stages.empty() || back != a.stage))
    stages.push_back(back);
  return stages;
}

// Consecutive uses of one stage with no use of another offloaded stage in between.
struct Run {
  int stage = 0;
  size_t first = 0, last = 0;                        // positions
  size_t next = std::numeric_limits<size_t>::max();  // next run of the same stage
};

std::vector<Run> RunsOf(const std::vector<Action>& actions, const Offload& offload) {
  std::vector<Run> runs;
  for (size_t p = 0; p < actions.size(); ++p)
    for (int s : Needs(actions[p], offload)) {
      if (!IsOffloaded(offload, s)) continue;
      if (!runs.empty() && runs.back().stage == s)
        runs.back().last = p;
      else
        runs.push_back({s, p, p});
    }
  std::map<int, size_t> later;
  for (size_t i = runs.size(); i-- > 0;) {
    if (auto found = later.find(runs[i].stage); found != later.end()) runs[i].next = found->second;
    later[runs[i].stage] = i;
  }
  return runs;
}

double HeldBytes(const Offload& offload, size_t rank) {
  return offload.held.empty() ? 0 : offload.held[rank];
}

double Room(const std::vector<Run>& runs, const Offload& offload, size_t rank) {
  if (offload.memory > 0) return std::max(0.0, offload.memory - HeldBytes(offload, rank));
  std::map<int, double> bytes;
  for (const Run& run : runs) bytes[run.stage] = BytesOf(offload, run.stage);
  std::vector<double> sorted;
  for (auto [stage, size] : bytes) sorted.push_back(size);
  std::sort(sorted.rbegin(), sorted.rend());
  return sorted.empty() ? 0 : sorted[0] + (sorted.size() > 1 ? sorted[1] : 0);
}

class RankLoads {
 public:
  RankLoads(const std::vector<Action>& actions, const Offload& offload, int rank)
      : offload_(offload),
        rank_(rank),
        runs_(RunsOf(actions, offload)),
        before_(actions.size() + 1) {
    room_ = Room(runs_, offload, static_cast<size_t>(rank)) * (1 + 1e-12);
  }

  // Returns the actions to insert before each position.
  std::vector<std::vector<Action>> Place() {
    for (size_t i = 0; i < runs_.size(); ++i) Need(i);
    for (auto [stage, run] : loaded_) Put(ActionKind::kEvict, stage, runs_[run].last + 1);
    for (auto& actions : before_)  // EVICTs precede LOADs
      std::stable_partition(actions.begin(), actions.end(),
                            [](const Action& a) { return a.kind == ActionKind::kEvict; });
    return std::move(before_);
  }

 private:
  const Offload& offload_;
  int rank_;
  std::vector<Run> runs_;
  std::vector<std::vector<Action>> before_;
  std::map<int, size_t> loaded_;  // stage -> last run that used it
  double room_ = 0, bytes_ = 0;
  size_t loads_ = 0;  // position of the last LOAD

  void Put(ActionKind kind, int stage, size_t position) {
    Action a;
    a.kind = kind, a.stage = stage;
    before_[position].push_back(a);
  }

  // Returns the stage to evict for run `i`: the one needed last; of equals, the one used first.
  int Victim(size_t i) const {
    int victim = -1;
    for (auto [stage, run] : loaded_) {
      // A pair needs both of its stages at once.
      if (runs_[run].last >= runs_[i].first) continue;
      if (run + 1 == i && loaded_.size() > 1) continue;
      if (victim < 0) {
        victim = stage;
        continue;
      }
      const Run& best = runs_[loaded_.at(victim)];
      if (std::pair(runs_[run].next, best.last) > std::pair(best.next, runs_[run].last))
        victim = stage;
    }
    if (victim < 0 && i > 0 && loaded_.count(runs_[i - 1].stage) &&
        runs_[i - 1].last < runs_[i].first)
      victim = runs_[i - 1].stage;
    return victim;
  }

  void Need(size_t i) {
    int stage = runs_[i].stage;
    if (loaded_.count(stage)) {
      loaded_[stage] = i;
      return;
    }
    double need = BytesOf(offload_, stage);
    while (bytes_ + need > room_ || (offload_.memory <= 0 && loaded_.size() >= 2)) {
      int victim = Victim(i);
      if (victim < 0)
        throw Error((offload_.memory_name.empty() ? "" : offload_.memory_name + ": ") + "rank " +
                        std::to_string(rank_) + ", stage " + std::to_string(stage),
                    "its weights take " + Plain(need) +
                        (bytes_ > 0 ? " beside " + Plain(bytes_) + " that are needed with them"
                                    : "") +
                        ", and " + Plain(room_) + " is given to the weights of offloaded stages" +
                        (HeldBytes(offload_, static_cast<size_t>(rank_)) > 0
                             ? " beside " + Plain(HeldBytes(offload_, static_cast<size_t>(rank_))) +
                                   " of tied weights that several of them use"
                             : ""),
                    "give them " +
                        Plain(bytes_ + need + HeldBytes(offload_, static_cast<size_t>(rank_))) +
                        " or more, or make the stage smaller");
      const Run& last = runs_[loaded_[victim]];
      Put(ActionKind::kEvict, victim, last.last + 1);
      loads_ = std::max(loads_, last.last + 1);
      bytes_ -= BytesOf(offload_, victim);
      loaded_.erase(victim);
    }
    Put(ActionKind::kLoad, stage, loads_);
    bytes_ += need;
    loaded_[stage] = i;
  }
};

}  // namespace

void InsertLoads(Plan& plan, const Offload& offload) {
  for (int s : offload.stages)
    if (s < 0 || s >= plan.stages)
      throw Error("offload", "there is no stage " + std::to_string(s),
                  "the stages are 0 to " + std::to_string(plan.stages - 1));
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    auto& actions = plan.ranks[r];
    std::erase_if(actions, [](const Action& a) {
      return a.kind == ActionKind::kLoad || a.kind == ActionKind::kEvict;
    });
    auto before = RankLoads(actions, offload, static_cast<int>(r)).Place();
    std::vector<Action> out;
    for (size_t p = 0; p <= actions.size(); ++p) {
      out.insert(out.end(), before[p].begin(), before[p].end());
      if (p < actions.size()) out.push_back(actions[p]);
    }
    actions = std::move(out);
  }
  plan.layout = {};
}

std::vector<double> LoadedPeaks(const Plan& plan, const Offload& offload) {
  std::vector<double> peaks;
  for (const auto& actions : plan.ranks) {
    RankMemory weights(0, false);
    for (const Action& a : actions)
      weights.Load(a, [&](int stage) { return BytesOf(offload, stage); });
    peaks.push_back(weights.peak());
  }
  return peaks;
}

void CheckLoads(const Plan& plan, const Offload& offload) {
  std::vector<double> peaks = LoadedPeaks(plan, offload);
  for (size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto& actions = plan.ranks[r];
    std::vector<char> loaded(plan.stages, 0);
    for (size_t p = 0; p < actions.size(); ++p) {
      if (actions[p].kind == ActionKind::kLoad || actions[p].kind == ActionKind::kEvict)
        loaded[actions[p].stage] = actions[p].kind == ActionKind::kLoad;
      for (int s : Needs(actions[p], offload))
        if (IsOffloaded(offload, s) && !loaded[s])
          throw Error(PlaceText(static_cast<int>(r), p, actions[p]),
                      "rule \"load\": stage " + std::to_string(s) + " is offloaded and not loaded");
    }
    double room = Room(RunsOf(actions, offload), offload, r);
    if (peaks[r] > room * (1 + 1e-12))
      throw Error("rank " + std::to_string(r), "rule \"load\": " + Plain(peaks[r]) +
                                                   " of weights are loaded at once, the memory "
                                                   "for offloaded stages is " +
                                                   Plain(room));
  }
}

}  // namespace pipewright
