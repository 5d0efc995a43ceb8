#include "plan/search/placements.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "plan/schedules/list_schedule.h"
#include "plan/search/due_search.h"
#include "plan/search/patterns.h"
#include "plan/search/recompute.h"
#include "plan/simulate/lower_bound.h"

namespace pipewright {

namespace {

double WorkOf(const Costs& costs, int stage, int rank, bool forward_only) {
  const StageCosts& c = CostsOf(costs, stage, rank);
  return forward_only ? c.F : c.F + c.I + c.W;
}

struct Judged {
  double span = 0;
  StagePlacement map;
};

class MapSearch {
 public:
  MapSearch(const Costs& costs, int ranks, int stages, int microbatches, double memory,
            bool forward_only, long effort)
      : costs_(costs),
        ranks_(ranks),
        stages_(stages),
        microbatches_(std::min(microbatches, std::max(4, 3 * ranks))),
        memory_(memory),
        forward_only_(forward_only),
        alike_(costs.links.empty() && costs.machine.empty() && costs.stage_on_rank.empty()),
        left_(effort) {}

  std::vector<StagePlacement> Run(size_t count) {
    for (const char* name : {"v", "loop"}) Add(ParsePlacement(name, ranks_, stages_));
    if (stages_ > ranks_) {
      Passes();
      Add(Together());
      Add(Spread());
    }
    Climb();
    std::vector<StagePlacement> maps;
    for (const Judged& one : judged_)
      if (maps.size() < count) maps.push_back(one.map);
    // Quick orders may underrate the maps that the real search is best at, so these are kept.
    StagePlacement v = ParsePlacement("v", ranks_, stages_);
    if (std::find(maps.begin(), maps.end(), v) == maps.end()) maps.push_back(v);
    return maps;
  }

 private:
  const Costs& costs_;
  int ranks_, stages_, microbatches_;
  double memory_;
  bool forward_only_, alike_;
  long left_;
  std::vector<Judged> judged_;  // the best first

  // Judges a map by its quick orders, with recomputation if nothing fits without.
  double Judge(const StagePlacement& map) {
    double span = QuickSpan(
        MakeOrderProblem(costs_, ranks_, map, microbatches_, memory_, {}, forward_only_), left_);
    std::vector<char> again;
    if (span < 0 && !forward_only_) again = RecomputeOffered(costs_, stages_);
    if (again.empty()) return span;
    return QuickSpan(
        MakeOrderProblem(costs_, ranks_, map, microbatches_, memory_, again, forward_only_), left_);
  }

  // Numbers like ranks in the order of their first stages, so that equal maps compare equal.
  StagePlacement Canonical(StagePlacement map) const {
    if (!alike_) return map;
    std::vector<int> number(ranks_, -1);
    int next = 0;
    for (auto& on : map) {
      int& n = number[on[0]];
      if (n < 0) n = next++;
      on[0] = n;
    }
    return map;
  }

  bool Add(const StagePlacement& any) {
    StagePlacement map = Canonical(any);
    for (const Judged& one : judged_)
      if (one.map == map) return false;
    double span = Judge(map);
    if (span < 0) return false;
    auto place = std::find_if(judged_.begin(), judged_.end(),
                              [&](const Judged& one) { return span < one.span * (1 - 1e-9); });
    bool best = place == judged_.begin();
    judged_.insert(place, {span, map});
    if (judged_.size() > 8) judged_.pop_back();
    return best;
  }

  // Adds maps that pass over the ranks several times, up or down, with one or more stages per rank.
  void Passes() {
    int each = stages_ / ranks_;
    if (stages_ % ranks_) return;
    for (int block = 1; block <= each; ++block) {
      int passes = each / block;
      if (each % block || passes > 7) continue;
      for (int down = 0; down < 1 << (passes - 1) && left_ > 0; ++down) {
        StagePlacement map;
        for (int s = 0; s < stages_; ++s) {
          int pass = s / (block * ranks_), at = s / block % ranks_;
          bool reversed = pass > 0 && (down >> (pass - 1)) & 1;
          map.push_back({reversed ? ranks_ - 1 - at : at});
        }
        Add(map);
      }
    }
  }

  // Puts runs of adjacent stages on each rank, cut so that the work is even.
  StagePlacement Together() const {
    double all = 0;
    for (int s = 0; s < stages_; ++s) all += WorkOf(costs_, s, 0, forward_only_);
    StagePlacement map;
    double before = 0;
    int rank = 0;
    for (int s = 0; s < stages_; ++s) {
      double work = WorkOf(costs_, s, 0, forward_only_);
      bool full = all > 0 && before + work / 2 > all * (rank + 1) / ranks_;
      bool must = stages_ - s == ranks_ - 1 - rank;
      bool first = map.empty() || map.back()[0] != rank;
      if ((full || must) && !first && rank + 1 < ranks_) ++rank;
      map.push_back({rank});
      before += work;
    }
    return map;
  }

  // Puts the largest stages first, each on the least loaded rank.
  StagePlacement Spread() const {
    std::vector<int> order(stages_);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return WorkOf(costs_, a, 0, forward_only_) > WorkOf(costs_, b, 0, forward_only_);
    });
    std::vector<double> load(ranks_);
    std::vector<int> held(ranks_);
    StagePlacement map(stages_);
    for (int i = 0; i < stages_; ++i) {
      int best = 0;
      bool only_empty = stages_ - i <= std::count(held.begin(), held.end(), 0);
      for (int r = 0; r < ranks_; ++r) {
        auto ends = [&](int rank) {
          double time = load[rank] + WorkOf(costs_, order[i], rank, forward_only_);
          return only_empty && held[rank] ? time + 1e300 : time;
        };
        if (ends(r) < ends(best)) best = r;
      }
      map[order[i]] = {best};
      load[best] += WorkOf(costs_, order[i], best, forward_only_);
      ++held[best];
    }
    return map;
  }

  // Swaps two stages, or all stages of two ranks, or moves one stage, while that helps.
  void Climb() {
    bool moved = !judged_.empty();
    while (moved && left_ > 0) {
      moved = false;
      StagePlacement base = judged_[0].map;
      auto attempt = [&](const StagePlacement& map) {
        if (left_ > 0 && Add(map)) moved = true;
      };
      for (int a = 0; a < stages_ && !moved; ++a) {
        for (int b = a + 1; b < stages_ && !moved; ++b) {
          if (base[a] == base[b]) continue;
          StagePlacement map = base;
          std::swap(map[a], map[b]);
          attempt(map);
        }
        long held = std::count(base.begin(), base.end(), base[a]);
        for (int r = 0; r < ranks_ && !moved && held > 1; ++r) {
          if (base[a][0] == r) continue;
          StagePlacement map = base;
          map[a] = {r};
          attempt(map);
        }
      }
      for (int a = 0; a < ranks_ && !moved && !alike_; ++a)
        for (int b = a + 1; b < ranks_ && !moved; ++b) {
          StagePlacement map = base;
          for (auto& on : map) on[0] = on[0] == a ? b : on[0] == b ? a : on[0];
          attempt(map);
        }
    }
  }
};

}  // namespace

double QuickSpan(const OrderProblem& problem, long& effort) {
  double least = -1;
  auto take = [&](const TimedOrder& result) {
    if (result.times.ok && (least < 0 || result.times.span < least)) least = result.times.span;
  };
  long actions = 3L * problem.stages * problem.microbatches;
  if (!problem.one_rank_each) {
    ListPolicy policy;
    policy.split = true;
    for (int depth : {1, problem.ranks, 2 * problem.ranks}) {
      policy.in_flight.assign(problem.stages, std::min(depth, problem.microbatches));
      Plan plan = ListSchedule(problem.placement, problem.ranks, problem.microbatches, policy);
      take(PlayScript(problem, ScriptOf(plan), 0.5));
    }
    effort -= 30 * actions;
    return least;
  }
  constexpr size_t kQuick = 4;
  DueSearch search(problem, kQuick, 1);
  for (size_t i = 0; i < kQuick; ++i) take(search.Next());
  if (!problem.forward_only) take(PlayScript(problem, PatternScript(problem, 0, 0), 0.5));
  effort -= static_cast<long>(3 * kQuick + 5) * actions;
  return least;
}

std::vector<StagePlacement> CandidateMaps(const Costs& costs, int ranks, int stages,
                                          int microbatches, double memory, bool forward_only,
                                          long effort, size_t count) {
  if (ranks == 1) return {ParsePlacement("loop", ranks, stages)};
  bool alike = costs.links.empty() && costs.machine.empty() && costs.stage_on_rank.empty();
  if (stages == ranks && alike) return {ParsePlacement("loop", ranks, stages)};
  return MapSearch(costs, ranks, stages, microbatches, memory, forward_only, effort).Run(count);
}

double AnyMapBound(const Costs& costs, int ranks, int stages, int microbatches, double memory,
                   bool forward_only) {
  auto least = [&](int stage, auto value) {
    double low = value(CostsOf(costs, stage, 0));
    for (int r = 1; r < ranks; ++r) low = std::min(low, value(CostsOf(costs, stage, r)));
    return low;
  };
  double latency = kNoLimit, m = microbatches;
  for (int a = 0; a < ranks; ++a)
    for (int b = 0; b < ranks; ++b)
      if (a != b) latency = std::min(latency, LinkOf(costs, a, b).latency);
  double hops = ranks > 1 ? (ranks - 1) * latency : 0;  // the path visits every rank
  std::vector<double> work;
  double forward = 0, back = 0, all = 0;
  std::vector<std::pair<double, double>> held;  // (F, bytes from F to I), least
  for (int s = 0; s < stages; ++s) {
    double f = least(s, [](const StageCosts& c) { return c.F; });
    double rest = least(s, [](const StageCosts& c) { return c.I + c.W; });
    work.push_back(m * (forward_only ? f : f + rest));
    all += work.back();
    forward += f;
    back += least(s, [](const StageCosts& c) { return c.I; });
    held.emplace_back(f, least(s, [](const StageCosts& c) {
                        return c.recompute >= 0 ? c.checkpoint : c.activation;
                      }));
  }
  std::sort(work.begin(), work.end(), std::greater<>());
  double bound = std::max(all / ranks, work[0]);
  if (stages > ranks) bound = std::max(bound, work[ranks - 1] + work[ranks]);
  if (forward_only) return std::max(bound, forward / ranks);
  bound = std::max(bound,
                   forward + back + 2 * hops + least(0, [](const StageCosts& c) { return c.W; }));
  // Bounds the F time that fits into a rank's memory by the best ratio of any stage.
  double ratio = 0;
  for (auto [f, bytes] : held) ratio = std::max(ratio, bytes > 0 ? f / bytes : kNoLimit);
  double idle = memory < kNoLimit ? std::max(0.0, forward + hops - ratio * memory) : 0;
  if (idle <= 0 || ranks == 1) return bound;
  // The rank of stage 0 works w: the bound is the least over w of
  // max(w + idle, (all - w) / (ranks - 1)).
  bool uniform = work.front() == work.back();
  double shared = all / ranks + idle / ranks;
  if (uniform) {
    shared = kNoLimit;
    for (int own = 1; own <= stages - ranks + 1; ++own) {
      double others = std::ceil(static_cast<double>(stages - own) / (ranks - 1));
      shared = std::min(shared, std::max(own * work[0] + idle, others * work[0]));
    }
  }
  return std::max(bound, shared);
}

}  // namespace pipewright
