#include "plan/search/improve.h"

#include <algorithm>
#include <random>

#include "plan/search/critical_path.h"

namespace pipewright {

namespace {

struct Swap {
  int rank, position;  // position of the first of the two
};

bool MaySwap(const CriticalPaths& paths, int first, int second) {
  const CriticalPaths::Job &a = paths.job(first), &b = paths.job(second);
  if (a.kind == b.kind && a.stage == b.stage) return false;  // microbatches stay in order
  return a.stage != b.stage || a.microbatch != b.microbatch;
}

// Finds adjacent pairs on the critical path of the worst rank where the second only waits for the
// first.
std::vector<Swap> Candidates(const CriticalPaths& paths) {
  std::vector<Swap> swaps;
  int rank = paths.worst();
  int position = static_cast<int>(paths.lists()[rank].size()) - 1;
  while (position >= 0) {
    const auto& list = paths.lists()[rank];
    const CriticalPaths::Job& job = paths.job(list[position]);
    if (paths.Ready(job) > paths.HeadUpTo(rank, position - 1)) {
      rank = paths.job(job.before).rank;
      position = paths.place(job.before);
      continue;
    }
    if (position > 0 && MaySwap(paths, list[position - 1], list[position]))
      swaps.push_back({rank, position - 1});
    --position;
  }
  return swaps;
}

// Descends until no swap on the critical path helps.
OrderTimes Descend(CriticalPaths& paths, int& trials, double enough) {
  OrderTimes best = paths.Time();
  if (!best.ok) return best;
  bool moved = true;
  while (moved && trials > 0 && best.span > enough) {
    moved = false;
    paths.Time();
    for (const Swap& swap : Candidates(paths)) {
      if (trials <= 0 || best.span <= enough) break;
      const auto& list = paths.lists()[swap.rank];
      if (!MaySwap(paths, list[swap.position], list[swap.position + 1])) continue;
      paths.Move(swap.rank, swap.position, swap.position + 1);
      OrderTimes times;
      if (paths.Fits(swap.rank)) times = paths.Time(), --trials;
      if (times.ok && times.Better(best)) {
        best = times;
        moved = true;
      } else {
        paths.Move(swap.rank, swap.position, swap.position + 1);
      }
    }
    --trials;
  }
  return best;
}

// Returns false if the move would change the order of a stage's microbatches.
bool MayMove(const CriticalPaths& paths, int rank, int from, int to) {
  const auto& list = paths.lists()[rank];
  for (int i = std::min(from, to); i <= std::max(from, to); ++i)
    if (i != from && !MaySwap(paths, list[from], list[i])) return false;
  return true;
}

using Lists = std::vector<std::vector<int>>;

// Perturbs the best lists and descends again while trials are left.
OrderTimes Shake(CriticalPaths& paths, OrderTimes best, Lists& least, int trials, int seed,
                 double enough) {
  std::minstd_rand random(static_cast<unsigned>(seed));
  auto below = [&](size_t n) { return static_cast<int>(static_cast<size_t>(random()) % n); };
  size_t longest = 1;
  for (const auto& list : least) longest = std::max(longest, list.size());
  double action = 2 * best.span / static_cast<double>(longest);
  Lists current = least;
  OrderTimes now = best;
  int misses = 0;
  while (trials > 0 && best.span > enough) {
    paths.SetLists(current);
    paths.Time();
    std::vector<Swap> path = Candidates(paths);
    // Memory is checked after all changes, since some fit only together.
    bool together = below(2) == 0;
    std::vector<int> touched;
    for (int wanted = 1 + below(5); wanted > 0; --wanted) {
      int rank, from, to;
      if (!path.empty() && below(2) == 0) {
        const Swap& swap = path[below(path.size())];
        rank = swap.rank, from = swap.position, to = from + 1;
      } else {
        rank = below(current.size());
        size_t size = current[rank].size();
        if (size < 2) continue;
        from = below(size - 1);
        to = std::min(static_cast<int>(size) - 1, from + 1 + below(6));
      }
      if (below(2) != 0) std::swap(from, to);
      if (!MayMove(paths, rank, from, to)) continue;
      paths.Move(rank, from, to);
      if (together)
        touched.push_back(rank);
      else if (!paths.Fits(rank))
        paths.Move(rank, to, from);
    }
    if (!std::all_of(touched.begin(), touched.end(), [&](int r) { return paths.Fits(r); })) {
      if (++misses % 8 == 0) --trials;
      continue;
    }
    --trials;
    OrderTimes times = Descend(paths, trials, enough);
    if (!times.ok) continue;
    // An order that is worse by less than an action is accepted, to leave a local optimum.
    double much = static_cast<double>(below(1000)) / 1000;
    if (times.Better(now) || times.span <= best.span + much * much * action) {
      current = paths.lists();
      now = times;
    }
    if (times.Better(best)) {
      best = times;
      least = paths.lists();
    } else if (below(40) == 0) {
      current = least;
      now = best;
    }
  }
  return best;
}

}  // namespace

OrderTimes Improve(const OrderProblem& problem, RankOrders& order, int trials, int seed,
                   double enough) {
  CriticalPaths paths(problem, order);
  enough *= 1 + 1e-12;
  OrderTimes best = Descend(paths, trials, enough);
  if (!best.ok) return best;
  Lists least = paths.lists();
  if (seed != 0) best = Shake(paths, best, least, trials, seed, enough);
  order = paths.ToOrder(least);
  return best;
}

}  // namespace pipewright
