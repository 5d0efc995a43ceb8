#include "plan/zb_improve.h"

#include <algorithm>
#include <random>

namespace pipewright {

namespace {

struct Swap {
  int rank, position;  // of the first of the two
};

bool MaySwap(const Op& a, const Op& b) {
  if (a.kind == b.kind && a.stage == b.stage) return false;  // microbatches stay in order
  return a.stage != b.stage || a.microbatch != b.microbatch;
}

// Pairs on the path to the end of the worst rank where the second only waits for the first.
std::vector<Swap> Candidates(const Order& order, const OrderTimer& timer) {
  std::vector<Swap> swaps;
  int rank = timer.worst_rank();
  int position = static_cast<int>(order[rank].size()) - 1;
  while (position >= 0) {
    const OrderTimer::Event& event = timer.events()[rank][position];
    if (event.cause_rank == rank && event.cause == position - 1 &&
        MaySwap(order[rank][position - 1], order[rank][position]))
      swaps.push_back({rank, position - 1});
    rank = event.cause_rank;
    position = event.cause;
  }
  return swaps;
}

// Down to where no swap on the path helps.
OrderTimes Descend(OrderTimer& timer, Order& order, int& trials, double enough) {
  OrderTimes best = timer.Time(order);
  if (!best.ok) return best;
  bool moved = true;
  while (moved && trials > 0 && best.span > enough) {
    moved = false;
    timer.Time(order);
    for (const Swap& swap : Candidates(order, timer)) {
      if (trials <= 0 || best.span <= enough) break;
      auto& list = order[swap.rank];
      if (!MaySwap(list[swap.position], list[swap.position + 1])) continue;
      std::swap(list[swap.position], list[swap.position + 1]);
      OrderTimes times;
      if (timer.Fits(swap.rank, list)) times = timer.Time(order), --trials;
      if (times.ok && times.Better(best)) {
        best = times;
        moved = true;
      } else {
        std::swap(list[swap.position], list[swap.position + 1]);
      }
    }
    --trials;
  }
  return best;
}

using Place = std::ptrdiff_t;

// One action past its neighbours: the first to the end of [from, to], or the last to its begin.
void Rotate(std::vector<Op>& list, size_t from, size_t to, bool later) {
  auto begin = list.begin() + static_cast<Place>(from), end = list.begin() + static_cast<Place>(to);
  std::rotate(begin, later ? begin + 1 : end, end + 1);
}

// Not done when microbatches of a stage would change places.
bool Move(std::vector<Op>& list, size_t from, size_t to, bool later) {
  for (size_t i = from; i <= to; ++i) {
    size_t moving = later ? from : to;
    if (i != moving && !MaySwap(list[moving], list[i])) return false;
  }
  Rotate(list, from, to, later);
  return true;
}

void Undo(std::vector<Op>& list, size_t from, size_t to, bool later) {
  Rotate(list, from, to, !later);
}

}  // namespace

OrderTimes Improve(const OrderProblem& problem, Order& order, int trials, int seed, double enough) {
  OrderTimer timer(problem);
  enough *= 1 + 1e-12;
  OrderTimes best = Descend(timer, order, trials, enough);
  if (!best.ok || seed == 0) return best;
  std::minstd_rand random(static_cast<unsigned>(seed));
  auto below = [&](size_t n) { return static_cast<size_t>(random()) % n; };
  size_t longest = 1;
  for (const auto& list : order) longest = std::max(longest, list.size());
  double action = 2 * best.span / static_cast<double>(longest);
  Order current = order;
  OrderTimes now = best;
  int misses = 0;
  while (trials > 0 && best.span > enough) {
    Order next = current;
    timer.Time(next);
    std::vector<Swap> path = Candidates(next, timer);
    // Changes that fit only together are found by looking at the memory last.
    bool together = below(2) == 0;
    std::vector<int> touched;
    for (int wanted = 1 + static_cast<int>(below(5)); wanted > 0; --wanted) {
      int rank;
      size_t from, to;
      if (!path.empty() && below(2) == 0) {
        const Swap& swap = path[below(path.size())];
        rank = swap.rank, from = static_cast<size_t>(swap.position), to = from + 1;
      } else {
        rank = static_cast<int>(below(next.size()));
        if (next[rank].size() < 2) continue;
        from = below(next[rank].size() - 1);
        to = std::min(next[rank].size() - 1, from + 1 + below(6));
      }
      bool later = below(2) == 0;
      if (!Move(next[rank], from, to, later)) continue;
      if (together)
        touched.push_back(rank);
      else if (!timer.Fits(rank, next[rank]))
        Undo(next[rank], from, to, later);
    }
    bool fits = true;
    for (int rank : touched) fits = fits && timer.Fits(rank, next[rank]);
    if (!fits) {
      if (++misses % 8 == 0) --trials;
      continue;
    }
    --trials;
    OrderTimes times = Descend(timer, next, trials, enough);
    if (!times.ok) continue;
    // Worse by less than an action is a way out.
    double much = static_cast<double>(below(1000)) / 1000;
    if (times.Better(now) || times.span <= best.span + much * much * action) {
      current = next;
      now = times;
    }
    if (times.Better(best)) {
      best = times;
      order = std::move(next);
    } else if (below(40) == 0) {
      current = order;
      now = best;
    }
  }
  return best;
}

}  // namespace pipewright
