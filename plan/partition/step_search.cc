#include "plan/partition/step_search.h"

#include <algorithm>

#include "base/error.h"
#include "plan/partition/exact/ideals.h"
#include "plan/partition/longest_paths.h"

namespace pipewright {

namespace {

struct StepTree {
  const PartitionProblem& problem;
  const UnitGraph& graph;
  const StepOptions& step;
  const Ideals& ideals;
  const LongestPaths& paths;
  double speed;
  int least, most;                            // stages
  int64_t actions = 0;                        // simulated actions left in the budget
  double below = 0;                           // only partitions with a shorter step are wanted
  std::vector<std::vector<int>> larger = {};  // by set: the sets with one unit more
  // [set][n] the least one-way time of n cuts outside of the set. Filled only if the units are a
  // chain with gradients.
  std::vector<std::vector<double>> cuts = {};

  PartitionResult best = {};

  void FindLarger() {
    larger.resize(ideals.sets.size());
    for (size_t set = 0; set < ideals.sets.size(); ++set)
      for (int link = ideals.first[set]; link < ideals.first[set + 1]; ++link)
        larger[ideals.smaller[link].set].push_back(static_cast<int>(set));
  }

  void FindCuts() {
    int n = static_cast<int>(graph.units.size());
    if (static_cast<int>(ideals.sets.size()) != n + 1 || n > 500) return;
    std::vector<double> times;  // time of the cut before each unit except the first
    for (int u = 1; u < n; ++u)
      for (const LongestPaths::Entry& entry : paths.entries[u]) {
        if (entry.before != u - 1) continue;
        if (!entry.gradient) return;
        times.push_back(entry.time);
      }
    cuts.resize(n + 1);
    for (int set = 0; set < n; ++set) {
      std::vector<double> inside(times.begin(), times.end() - std::min(set, n - 1));
      std::sort(inside.begin(), inside.end());
      cuts[set] = {0};
      for (double time : inside) cuts[set].push_back(cuts[set].back() + time);
    }
  }

  bool Whole(int set) const { return set + 1 == static_cast<int>(ideals.sets.size()); }

  // Returns true if a partition that ends with the stages `last`, of which the first is new, may
  // have a short enough step. It takes at least the step of these stages alone, plus the time until
  // the first one has its inputs and the time that its gradients still need afterwards.
  bool Promising(int set, const Bits& stage, const PartitionResult& last) {
    double before = 0, after = 0, work = 0;
    ForEach(stage, [&](int unit) {
      work += paths.own[unit];
      for (const LongestPaths::Entry& entry : paths.entries[unit]) {
        if (Has(stage, entry.before)) continue;
        before = std::max(before, entry.there);
        after = std::max(after, entry.home);
      }
    });
    int stages = static_cast<int>(last.stages.size());
    if (!Whole(set) && !cuts.empty()) {
      size_t between = static_cast<size_t>(std::max(least - stages - 1, 0));
      if (between >= cuts[set].size()) return false;
      before += cuts[set][between], after += cuts[set][between];
    }
    if (before + work * step.microbatches + after >= below) return false;
    double ahead =
        (ideals.work.back() - ideals.work[set]) / speed;  // work of the stages before these
    if (ahead * step.microbatches / std::max(most - stages, 1) >= below) return false;
    bool chain = false;
    double time = Simulate(last, &chain);
    return time + (chain ? before + after : 0) < below;
  }

  double Simulate(const PartitionResult& stages, bool* chain) {
    actions -= static_cast<int64_t>(stages.stages.size()) * step.microbatches * 2 + 500;
    return StepTime(problem, stages, step, chain);
  }

  // Searches all partitions whose last stages are `last`, which hold the set. Returns false if that
  // takes too many actions.
  bool Search(int set, const PartitionResult& last) {
    if (Whole(set)) return Judge(last);
    int stages = static_cast<int>(last.stages.size());
    if (stages >= most) return true;
    std::vector<int> queue = larger[set];
    std::vector<char> seen(ideals.sets.size(), 0);
    for (int next : queue) seen[next] = 1;
    for (size_t at = 0; at < queue.size(); ++at) {
      if (actions < 0) return false;
      int next = queue[at];
      actions -= 100 + static_cast<int64_t>(ideals.sets.size()) / 8;
      Bits stage = ideals.sets[next];
      for (size_t w = 0; w < stage.size(); ++w) stage[w] &= ~ideals.sets[set][w];
      double work = ideals.work[next] - ideals.work[set];
      if (work * step.microbatches / speed >= below) continue;  // larger ones take longer still
      for (int one_more : larger[next])
        if (!seen[one_more]) seen[one_more] = 1, queue.push_back(one_more);
      if (Whole(next) ? stages + 1 < least : stages + 1 == most) continue;
      PartitionResult longer = last;
      longer.stages.insert(longer.stages.begin(), PartitionStage());
      PartitionStage& first = longer.stages[0];
      while (problem.devices[first.device_class].count == 0) ++first.device_class;
      ForEach(stage, [&](int unit) {
        const std::vector<int>& nodes = graph.units[unit].nodes;
        first.nodes.insert(first.nodes.end(), nodes.begin(), nodes.end());
      });
      std::sort(first.nodes.begin(), first.nodes.end());
      if (Promising(next, stage, longer) && !Search(next, longer)) return false;
    }
    return true;
  }

  bool Judge(PartitionResult result) {
    EvaluatePartition(problem, result);
    if (!CheckPartition(problem, result).empty()) return true;
    result.feasible = true;
    result.objective = Simulate(result, nullptr);
    if (result.objective < below) best = result, below = result.objective;
    return true;
  }
};

}  // namespace

bool IsSearchable(const PartitionProblem& problem, const StepOptions& step) {
  int classes = 0;
  for (const DeviceClass& device : problem.devices) {
    if (device.count > 0 && device.host) return false;
    classes += device.count > 0;
  }
  for (const PartitionNode& node : problem.nodes)
    if (node.backward) return false;
  return classes == 1 && problem.pair_links.empty() && problem.max_replicas == 1 &&
         OrderOf(step.schedule) != ScheduleOrder::kOther;
}

void SearchSteps(const PartitionProblem& problem, const StepOptions& step, int64_t actions,
                 PartitionResult& best) {
  if (!IsSearchable(problem, step)) return;
  UnitGraph graph = BuildUnits(problem, Merge::kNone);
  Ideals ideals;
  if (!EnumerateIdeals(graph, 20'000, kInfinity, ideals)) return;
  double speed = FastestDevice(problem);
  int devices = 0;
  for (const DeviceClass& device : problem.devices) devices += device.count;
  LongestPaths paths(problem, graph, step, speed);
  StepTree tree{problem, graph, step, ideals, paths, speed, 1, devices};
  if (problem.stages > 0) tree.least = tree.most = problem.stages;
  tree.FindLarger();
  tree.FindCuts();
  // Lower limits can be ruled out with less effort, so they come first.
  for (double share : {0.05, 0.1, 0.2, 0.4, 1.0}) {
    double gap = best.objective - best.lower_bound;
    if (gap <= 1e-9 * best.objective) return;
    tree.actions = actions / 5;
    tree.below = share == 1 ? best.objective : best.lower_bound + gap * share;
    bool ended = tree.Search(0, PartitionResult());
    double lower_bound = ended ? tree.below : best.lower_bound;
    if (tree.best.feasible) best = tree.best;
    best.lower_bound = std::min(lower_bound, best.objective);
    if (!ended || tree.best.feasible) return;
  }
}

}  // namespace pipewright
