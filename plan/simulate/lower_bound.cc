#include "plan/simulate/lower_bound.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "plan/actions.h"
#include "plan/simulate/memory.h"

namespace pipewright {

namespace {

// A stage's least costs. A B counts as an I followed by a W, a pair as an F followed by a B: both
// parts start no earlier and end no later than in the plan, so every order stays possible.
struct Least {
  double F = 0, I = 0, W = 0;
  double stored = 0, kept = 0;  // bytes from F to I, from I to W
};

struct Share {  // one rank's part of one stage
  int stage = 0;
  double forwards = 0, backwards = 0;
  Least least;
};

struct Edge {
  int from = 0, to = 0;
  double up = 0, down = 0;  // latency forward and backward
  bool gradient = true;
};

// A group of one rank's jobs: none starts before `head`, and `tail` must follow each.
struct Jobs {
  double head = 0, work = 0, tail = 0;
};

// Returns max over subsets of (least head + work + least tail). Sorts `jobs`.
double OneMachine(std::vector<Jobs>& jobs) {
  std::sort(jobs.begin(), jobs.end(), [](const Jobs& a, const Jobs& b) { return a.tail > b.tail; });
  double best = 0;
  size_t heads = jobs.size() > 600 ? 0 : jobs.size();  // quadratic: only for few jobs
  for (size_t i = 0; i < std::max<size_t>(heads, jobs.empty() ? 0 : 1); ++i) {
    double head = jobs[i].head, work = 0;
    if (heads == 0)
      for (const Jobs& job : jobs) head = std::min(head, job.head);
    for (const Jobs& job : jobs)
      if (job.head >= head && job.work > 0) {
        work += job.work;
        best = std::max(best, head + work + job.tail);
      }
  }
  return best;
}

// Items to pack: `count` objects of `value` and `size` each, which may be divided.
struct Item {
  double value = 0, size = 0, count = 0;
};

double Knapsack(std::vector<Item> items, double room) {
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return a.value * b.size > b.value * a.size;  // by value per size, size 0 first
  });
  double value = 0;
  for (const Item& item : items) {
    double take = item.size > 0 ? std::min(item.count, room / item.size) : item.count;
    take = std::max(0.0, take);
    value += take * item.value;
    room -= take * item.size;
  }
  return value;
}

double Floor(double x) { return std::floor(x * (1 + 1e-12) + 1e-9); }

class Bound {
 public:
  Bound(const Plan& plan, const Costs& costs, double memory, int steps,
        const std::vector<char>& recompute)
      : stages_(plan.stages), shares_(plan.ranks.size()), ranks_of_(plan.stages) {
    for (size_t r = 0; r < plan.ranks.size(); ++r)
      CountShares(plan.ranks[r], static_cast<int>(r), costs, steps, recompute);
    for (size_t r = 0; r < plan.ranks.size(); ++r) {
      double weights = 0;
      bool offloaded = false;
      for (const Action& a : plan.ranks[r]) offloaded |= a.kind == ActionKind::kLoad;
      for (const Share& share : shares_[r])
        weights += offloaded ? 0 : CostsOf(costs, share.stage, static_cast<int>(r)).weights;
      room_.push_back(memory - weights);
    }
    path_.resize(stages_);
    for (int s = 0; s < stages_; ++s)
      for (int r : ranks_of_[s])
        for (const Share& share : shares_[r])
          if (share.stage == s) Shorten(path_[s], share.least, r == ranks_of_[s][0]);
    FindEdges(plan, costs);
    single_ = chain_;
    for (const auto& ranks : ranks_of_) single_ &= ranks.size() == 1;
    FindPaths();
  }

  LowerBound Get() {
    LowerBound bound;
    idle_.resize(shares_.size());
    for (size_t r = 0; r < shares_.size(); ++r)
      if (single_ && backward_ && !shares_[r].empty()) idle_[r] = IdleOf(r);
    for (const auto& shares : shares_) {
      if (shares.empty()) continue;
      std::vector<Jobs> jobs;
      for (const Share& s : shares) {
        jobs.push_back({start_f_[s.stage], s.forwards * s.least.F, tail_f_[s.stage]});
        jobs.push_back({start_i_[s.stage], s.backwards * s.least.I, tail_i_[s.stage]});
        double head = start_i_[s.stage] + path_[s.stage].I;
        jobs.push_back({head, s.backwards * s.least.W, 0});
      }
      bound.makespan = std::max(bound.makespan, OneMachine(jobs));
    }
    for (size_t r = 0; r < shares_.size(); ++r) {
      if (shares_[r].empty()) continue;
      const Idle& idle = idle_[r];
      double span = std::max({Work(r) + idle.all, RoundTrip(r), MemoryTime(r)});
      if (single_) span = std::max(span, Through(shares_[r].front().stage));
      if (single_ && backward_) span = std::max(span, Held(shares_[r].front().stage));
      bound.span = std::max(bound.span, span);
      double head = kNoLimit;
      for (const Share& s : shares_[r]) head = std::min(head, start_f_[s.stage]);
      bound.makespan = std::max(bound.makespan, head + span);
      if (single_ && backward_) {
        double work = 0;
        for (const Share& s : shares_[r]) work += s.forwards * s.least.F + s.backwards * s.least.I;
        double after = tail_i_[shares_[r].front().stage];
        bound.makespan = std::max(bound.makespan, head + idle.before + work + after);
      }
    }
    return bound;
  }

 private:
  struct Idle {
    double before = 0;  // between the rank's first F and its first I
    double all = 0;
    double last = 0;     // the most work that can be left when its last F ends
    bool apart = false;  // in every order, its last F ends after its first I starts
  };

  int stages_;
  std::vector<Idle> idle_;                  // [rank]
  std::vector<std::vector<Share>> shares_;  // [rank], by stage
  std::vector<std::vector<int>> ranks_of_;
  std::vector<double> room_;
  std::vector<Least> path_;  // [stage], the minimum over its ranks
  std::vector<Edge> edges_;  // by (from, to)
  bool chain_ = true, single_ = true, backward_ = false;
  // The earliest starts of F and I from t = 0, and the time that must follow the end of F and I.
  std::vector<double> start_f_, start_i_, tail_f_, tail_i_;

  static void Shorten(Least& path, const Least& one, bool first) {
    path.F = first ? one.F : std::min(path.F, one.F);
    path.I = first ? one.I : std::min(path.I, one.I);
    path.W = first ? one.W : std::min(path.W, one.W);
  }

  void CountShares(const std::vector<Action>& actions, int rank, const Costs& costs, int steps,
                   const std::vector<char>& recompute) {
    std::map<int, Share> shares;
    for (const Action& a : actions) {
      if (HasForward(a)) shares[a.stage].forwards += steps;
      if (HasBackward(a)) shares[BackwardStage(a)].backwards += steps, backward_ = true;
    }
    double longest = 0;
    for (auto& [stage, share] : shares) {
      const StageCosts& c = CostsOf(costs, stage, rank);
      bool again = !recompute.empty() && recompute[stage] && c.recompute >= 0;
      share.stage = stage;
      share.least.F = c.F;
      share.least.I = std::min(c.I, c.B);
      share.least.W = std::max(0.0, std::min(c.B, c.I + c.W) - share.least.I);
      share.least.I += again ? c.recompute : 0;
      const StageMemory held = StageMemoryOf(c, again);
      share.least.stored = held.stored;
      share.least.kept = held.kept;
      if (share.backwards > 0) longest = std::max(longest, share.least.I + share.least.W);
    }
    for (auto& [stage, share] : shares) {
      double pair = CostsOf(costs, stage, rank).overlap;
      if (pair >= 0) share.least.F = std::min(share.least.F, std::max(0.0, pair - longest));
      shares_[rank].push_back(share);
      ranks_of_[stage].push_back(rank);
    }
  }

  bool ShareRank(int a, int b) const {
    return std::any_of(ranks_of_[a].begin(), ranks_of_[a].end(), [&](int rank) {
      return std::count(ranks_of_[b].begin(), ranks_of_[b].end(), rank) > 0;
    });
  }

  void FindEdges(const Plan& plan, const Costs& costs) {
    std::map<std::pair<int, int>, bool> found;  // true if a gradient comes back
    for (const auto& actions : plan.ranks)
      for (const Action& a : actions) {
        if (!IsSend(a.kind)) continue;
        int low = std::min(a.stage, PeerOf(a)), high = std::max(a.stage, PeerOf(a));
        found[{low, high}] |= a.kind == ActionKind::kSendBackward;
        chain_ &= high == low + 1;
      }
    // Edges within a rank have no transfers: in a chain, they are those between neighbors.
    for (int s = 0; !found.empty() && s + 1 < stages_; ++s)
      chain_ &= found.count({s, s + 1}) || ShareRank(s, s + 1);
    if (chain_)
      for (int s = 0; s + 1 < stages_; ++s) found.try_emplace({s, s + 1}, true);
    for (auto [ends, gradient] : found) {
      Edge edge{ends.first, ends.second, kNoLimit, kNoLimit, gradient};
      for (int a : ranks_of_[edge.from])
        for (int b : ranks_of_[edge.to]) {
          const EdgeCosts sent = EdgeCostsOf(costs, edge.from, edge.to, a);
          edge.up = std::min(edge.up, TransferTime(costs, a, b, sent.bytes));
          edge.down = std::min(edge.down, TransferTime(costs, b, a, sent.back));
        }
      if (edge.up < kNoLimit) edges_.push_back(edge);
    }
  }

  void FindPaths() {
    start_f_.assign(stages_, 0), start_i_.assign(stages_, 0);
    tail_f_.assign(stages_, 0), tail_i_.assign(stages_, 0);
    for (const Edge& e : edges_)  // ascending by producer
      start_f_[e.to] = std::max(start_f_[e.to], start_f_[e.from] + path_[e.from].F + e.up);
    if (backward_) {
      for (int s = 0; s < stages_; ++s) {
        start_i_[s] = start_f_[s] + path_[s].F;
        tail_i_[s] = path_[s].W;
      }
      for (size_t i = edges_.size(); i-- > 0;) {
        const Edge& e = edges_[i];
        if (!e.gradient) continue;
        start_i_[e.from] = std::max(start_i_[e.from], start_i_[e.to] + path_[e.to].I + e.down);
      }
      std::vector<Edge> by_consumer = edges_;
      std::stable_sort(by_consumer.begin(), by_consumer.end(),
                       [](const Edge& a, const Edge& b) { return a.to < b.to; });
      for (const Edge& e : by_consumer)
        if (e.gradient)
          tail_i_[e.to] = std::max(tail_i_[e.to], e.down + path_[e.from].I + tail_i_[e.from]);
      for (int s = 0; s < stages_; ++s) tail_f_[s] = path_[s].I + tail_i_[s];
    }
    for (size_t i = edges_.size(); i-- > 0;) {
      const Edge& e = edges_[i];
      tail_f_[e.from] = std::max(tail_f_[e.from], e.up + path_[e.to].F + tail_f_[e.to]);
    }
  }

  double Work(size_t rank) const {
    double work = 0;
    for (const Share& s : shares_[rank])
      work += s.forwards * s.least.F + s.backwards * (s.least.I + s.least.W);
    return work;
  }

  // Returns the least time from the start of F(s) to the end of I(s) of one microbatch. Where the
  // stages are not a chain, F may wait for others than those through which the gradient comes.
  double Life(int stage) const {
    return chain_ ? start_i_[stage] + path_[stage].I - start_f_[stage]
                  : path_[stage].F + path_[stage].I;
  }

  double RoundTrip(size_t rank) const {
    double longest = 0;
    for (const Share& s : shares_[rank])
      if (s.backwards > 0) longest = std::max(longest, Life(s.stage) + path_[s.stage].W);
    return longest;
  }

  // Bounds the span by memory: bytes times time cannot exceed the limit times the span.
  double MemoryTime(size_t rank) const {
    if (!backward_ || room_[rank] == kNoLimit || room_[rank] <= 0) return 0;
    double held = 0;
    for (const Share& s : shares_[rank])
      held += s.backwards * (s.least.stored * Life(s.stage) + s.least.kept * s.least.W);
    return held / room_[rank];
  }

  Idle IdleOf(size_t rank) const {
    const std::vector<Share>& shares = shares_[rank];
    int low = shares.front().stage, high = shares.back().stage;
    double room = room_[rank], count = 0, size = 0;
    bool uniform = true;
    std::vector<Item> first, last;
    const Least& one = shares.front().least;
    for (const Share& s : shares) {
      first.push_back({s.least.F, s.least.stored, s.forwards});
      last.push_back({s.least.I + s.least.W, s.least.stored, s.backwards});
      last.push_back({s.least.W, s.least.kept, s.backwards});
      uniform &= s.least.F == one.F && s.least.I == one.I && s.least.W == one.W &&
                 s.least.stored == one.stored && s.least.kept == one.kept;
      count += s.forwards;
      size += s.forwards * s.least.stored;
    }
    double most_first = Knapsack(first, room), most_last = Knapsack(last, room);
    if (uniform && one.stored > 0 && room < kNoLimit) {
      double whole = std::min(count, Floor(room / one.stored));
      most_first = std::min(most_first, whole * one.F);
      double most = whole * one.I + count * one.W;
      if (one.kept > 0) {
        most = 0;
        for (double n = 0; n <= whole; ++n) {
          double kept = std::min(count, Floor((room - n * one.stored) / one.kept));
          most = std::max(most, n * (one.I + one.W) + kept * one.W);
        }
      }
      most_last = std::min(most_last, most);
    }
    double backward = 0;
    for (const Share& s : shares) backward += s.backwards * (s.least.I + s.least.W);
    most_last = std::min(most_last, backward);
    double gap = start_i_[high] - start_f_[low];
    double rest = Life(low) - (start_f_[high] + path_[high].F - start_f_[low]) + path_[low].W;
    Idle idle;
    idle.before = std::max(0.0, gap - most_first);
    double after = std::max(0.0, rest - most_last);
    idle.last = most_last;
    idle.apart = size > room * (1 + 1e-12);
    // If all forwards precede the first I, the two windows may coincide.
    idle.all = idle.apart ? idle.before + after : std::max(idle.before, after);
    return idle;
  }

  // Bounds the span by the end of a later rank's last F. By then all of the rank's work is done but
  // the most that can be left; the path to the last I of stage `low` still follows.
  double Held(int low) const {
    double longest = 0;
    for (size_t r = 0; r < shares_.size(); ++r) {
      if (shares_[r].empty() || shares_[r].front().stage < low) continue;
      int first = shares_[r].front().stage, high = shares_[r].back().stage;
      Idle idle = idle_[r];
      double last_f =
          start_f_[first] - start_f_[low] + (idle.apart ? idle.before : 0) + Work(r) - idle.last;
      double rest = start_i_[low] + path_[low].I - start_f_[high] - path_[high].F + path_[low].W;
      longest = std::max(longest, last_f + rest);
    }
    return longest;
  }

  // Bounds the span by the chain from stage `low` on, which starts with this rank's first F and
  // ends with its last I and a W. Each rank on that path must do its work in between.
  double Through(int low) const {
    double longest = 0;
    for (const auto& shares : shares_) {
      std::vector<Jobs> jobs;
      for (const Share& s : shares) {
        if (s.stage < low) continue;
        if (!backward_) {
          if (ranks_of_[s.stage] == ranks_of_[low])
            jobs.push_back({start_f_[s.stage] - start_f_[low], s.forwards * s.least.F, 0});
          continue;
        }
        double back =
            start_i_[low] + path_[low].I - start_i_[s.stage] - path_[s.stage].I + path_[low].W;
        double around =
            start_i_[low] + path_[low].I - start_f_[s.stage] - path_[s.stage].F + path_[low].W;
        jobs.push_back({start_f_[s.stage] - start_f_[low], s.forwards * s.least.F, around});
        jobs.push_back({start_i_[s.stage] - start_f_[low], s.backwards * s.least.I, back});
      }
      longest = std::max(longest, OneMachine(jobs));
    }
    return longest;
  }
};

}  // namespace

LowerBound BoundOf(const Plan& plan, const Costs& costs, double memory, int steps,
                   const std::vector<char>& recompute) {
  CheckStages(costs, plan.stages);
  return Bound(plan, costs, memory, steps, recompute.empty() ? RecomputeOf(plan) : recompute).Get();
}

}  // namespace pipewright
