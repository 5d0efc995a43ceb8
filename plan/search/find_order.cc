#include "plan/search/find_order.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/schedules/list_schedule.h"
#include "plan/schedules/schedule.h"
#include "plan/schedules/table.h"
#include "plan/search/critical_path.h"
#include "plan/search/due_search.h"
#include "plan/search/improve.h"
#include "plan/search/patterns.h"
#include "plan/search/tabu.h"

namespace pipewright {

namespace {

constexpr long kPlay = 2;  // cost of PlayScript, in timings of an order
constexpr long kDue = 3;   // cost of PlayDue, likewise

// Tries scripts for one map and one set of recomputed stages, and keeps the best order.
class OrderSearch {
 public:
  OrderSearch(const OrderProblem& problem, long effort, double bound)
      : p_(problem), effort_(effort), bound_(bound) {
    for (const auto& ranks : p_.placement)
      actions_ += static_cast<long>(p_.microbatches) * (ranks.empty() ? 0 : 3);
  }

  TimedOrder Run() {
    Safe();
    Named();
    if (p_.one_rank_each) Patterns();
    bool single = std::all_of(p_.held.begin(), p_.held.end(),
                              [](const auto& stages) { return stages.size() == 1; });
    if (single) Warm();
    if (p_.one_rank_each && !p_.forward_only) Due();
    Polish();
    return std::move(best_);
  }

 private:
  const OrderProblem& p_;
  long effort_;  // actions that may be timed
  double bound_;  // lower bound on the span
  long actions_ = 0;
  TimedOrder best_;
  std::vector<TimedOrder> starts_;

  OrderTimes Try(RankOrders script, double gap_share) {
    effort_ -= kPlay * actions_;
    if (p_.forward_only)
      for (auto& list : script)
        std::erase_if(list, [](const Op& op) { return op.kind != OpKind::kF; });
    TimedOrder result = PlayScript(p_, script, gap_share);
    if (!result.times.ok) return result.times;
    bool better = !best_.times.ok || result.times.Better(best_.times);
    if (better) best_ = {result.times, result.order};
    Keep({result.times, std::move(result.order)});
    return result.times;
  }

  // Adds an order to the best few starts unless one of them has the same span.
  void Keep(TimedOrder found) {
    for (const TimedOrder& start : starts_)
      if (std::abs(start.times.span - found.times.span) <= 1e-9 * found.times.span) return;
    auto place = std::find_if(starts_.begin(), starts_.end(), [&](const TimedOrder& start) {
      return found.times.Better(start.times);
    });
    starts_.insert(place, std::move(found));
    if (starts_.size() > 6) starts_.pop_back();
  }

  // Tries a schedule with its own order of W.
  void Exact(const Plan& schedule) {
    RankOrders order = RankOrdersOf(schedule);
    if (p_.forward_only) return;
    CriticalPaths paths(p_, order);
    for (int r = 0; r < p_.ranks; ++r)
      if (!paths.Fits(r)) return;
    effort_ -= actions_;
    TimedOrder found{paths.Time(), std::move(order)};
    if (!found.times.ok) return;
    if (!best_.times.ok || found.times.Better(best_.times)) best_ = found;
    Keep(std::move(found));
  }

  void TryAll(const RankOrders& script) {
    for (double gap_share : {1.0, 0.0, 0.5, 0.8, 0.2}) {
      if (effort_ <= 0 && best_.times.ok) return;
      Try(script, gap_share);
    }
  }

  // Tries lists with few microbatches in flight; one at a time fits if anything does.
  void Safe() {
    int last = 0;
    for (int depth = 1;; depth = std::max(depth + 1, depth * 3 / 2)) {
      ListPolicy policy;
      policy.split = true;
      policy.in_flight.assign(p_.stages, std::min(depth, p_.microbatches));
      Plan plan = ListSchedule(p_.placement, p_.ranks, p_.microbatches, policy);
      OrderTimes times = Try(ScriptOf(plan), 0.5);
      if (depth == 1 && !times.ok) OneByOne();
      last = depth;
      if (!times.ok || last >= p_.microbatches || last > 4 * p_.ranks) break;
    }
  }

  void OneByOne() {
    RankOrders script(p_.ranks);
    for (int m = 0; m < p_.microbatches; ++m) {
      for (int s = 0; s < p_.stages; ++s) script[p_.RankOf(s, m)].push_back({OpKind::kF, s, m});
      for (int s = p_.stages; s-- > 0;) script[p_.RankOf(s, m)].push_back({OpKind::kI, s, m});
    }
    Try(script, 0.5);
  }

  void Named() {
    for (const ScheduleKind& kind : Schedules()) {
      if (!kind.starts_search) continue;
      if (effort_ <= 0) return;
      try {
        Plan plan = MakeSchedule(kind.name, p_.ranks, p_.stages, p_.microbatches, p_.placement);
        Exact(plan);
        TryAll(ScriptOf(plan));
      } catch (const Error&) {  // the schedule is not made for these numbers
      }
    }
  }

  void Patterns() {
    for (double slack : {0.0, 0.15, 0.4})
      for (double tolerance : {0.0, 0.1, 0.25}) {
        if (effort_ <= 0) return;
        TryAll(PatternScript(p_, slack, tolerance));
      }
  }

  // Searches the number of forwards before the first I, by rank: numbers on a line first, then each
  // rank by itself, until a third of the effort is left.
  void Warm() {
    long enough = effort_ / 3;
    std::vector<int> most(p_.ranks), best;
    int top = 1;
    for (int r = 0; r < p_.ranks; ++r) {
      double stored = p_.On(p_.held[r][0], r).memory.stored;
      double fit = stored > 0 ? p_.room[r] / stored * (1 + 1e-12) + 1e-9 : p_.microbatches;
      most[r] = std::max(1, static_cast<int>(std::min<double>(fit, p_.microbatches)));
      top = std::max(top, most[r]);
    }
    OrderTimes least;
    double gap_share = 0.5;
    auto attempt = [&](const std::vector<int>& warm, double wait) {
      if (effort_ <= enough) return false;
      OrderTimes times = Try(WarmScript(p_, warm), wait);
      if (!times.ok || (least.ok && !times.Better(least))) return false;
      least = times, best = warm, gap_share = wait;
      return true;
    };
    for (double slope : {0.0, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0, 4.0})
      for (int start :
           {top, top - 1, top * 7 / 8, top * 3 / 4, top / 2, p_.ranks, 2 * p_.ranks - 1}) {
        std::vector<int> warm(p_.ranks);
        for (int r = 0; r < p_.ranks; ++r)
          warm[r] = std::clamp(static_cast<int>(std::lround(start - slope * r)), 1, most[r]);
        for (double wait : {0.0, 0.5, 1.0}) attempt(warm, wait);
      }
    for (bool moved = true; moved && least.ok;) {
      moved = false;
      for (int r = 0; r < p_.ranks; ++r)
        for (int change : {1, -1, 2, -2}) {
          std::vector<int> warm = best;
          warm[r] = std::clamp(warm[r] + change, 1, most[r]);
          if (warm[r] != best[r] && attempt(warm, gap_share)) moved = true;
          // Changes this rank and all after it, or before it.
          for (bool behind : {true, false}) {
            warm = best;
            for (int q = behind ? r : 0; q < (behind ? p_.ranks : r + 1); ++q)
              warm[q] = std::clamp(warm[q] + change, 1, most[q]);
            if (warm != best && attempt(warm, gap_share)) moved = true;
          }
        }
      for (double wait : {0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0})
        if (attempt(best, wait)) moved = true;
    }
  }

  // Searches due times until a quarter of the effort is left, by successive halving: of several
  // searches the better half continues. They pay off if warm-up and cool-down, which no script
  // fits, are much of the span. Improvements come at ever longer intervals, so the searches end if
  // none of their orders is the best and the later half of the time brought no improvement.
  void Due() {
    long cost = kDue * std::max<long>(1, actions_),
         whole = std::min(effort_ / 4 * 3, 40'000 * cost);
    std::vector<DueSearch> searches;
    searches.emplace_back(p_, static_cast<size_t>(std::clamp<long>(whole / cost / 4, 1, 96)), 1);
    auto enough = [&] { return best_.times.ok && best_.times.span <= bound_; };
    bool leads = false;
    OrderTimes own;                  // the best of these searches
    long all_spent = 0, own_at = 0;  // own_at: effort spent when it was found
    auto go = [&](DueSearch& search) {
      const TimedOrder& found = search.Next();
      long spent = kDue * std::max<long>(1, search.played());
      effort_ -= spent, whole -= spent, all_spent += spent;
      if (found.times.ok && found.times.Better(own)) own = found.times, own_at = all_spent;
      if (!found.times.ok || (best_.times.ok && !found.times.Better(best_.times))) return spent;
      leads = true;
      best_ = {found.times, found.order};
      Keep(best_);
      return spent;
    };
    while (searches[0].starting() && !enough()) go(searches[0]);
    if (!searches[0].best().ok) return;
    int rounds = whole / cost > 1000 ? 3 : 1;
    for (unsigned n = 1; n < 1u << (rounds - 1); ++n) {
      searches.push_back(searches[0]);
      searches.back().Reseed(n + 1);
    }
    for (; rounds > 0; --rounds) {
      long share = whole / rounds / static_cast<long>(searches.size());
      for (DueSearch& search : searches) {
        for (long left = share; left > 0 && !enough();) left -= go(search);
        if (!leads && own_at < all_spent / 2) return;
      }
      std::stable_sort(searches.begin(), searches.end(),
                       [](const auto& a, const auto& b) { return a.best().Better(b.best()); });
      searches.resize((searches.size() + 1) / 2, searches[0]);
    }
  }

  // Improves every good start a little, then the best ones until the effort is spent.
  void Polish() {
    if (!best_.times.ok) return;
    long cost = std::max<long>(1, actions_);
    int all = static_cast<int>(std::clamp<long>(effort_ / cost, 20, 60000));
    for (int round = 0; round < 2; ++round) {
      std::stable_sort(
          starts_.begin(), starts_.end(),
          [](const TimedOrder& a, const TimedOrder& b) { return a.times.Better(b.times); });
      bool tiny = actions_ <= 60;
      if (round == 1 && starts_.size() > 3 && !tiny) starts_.resize(3);
      for (size_t i = 0; i < starts_.size() && best_.times.span > bound_; ++i) {
        TimedOrder& start = starts_[i];
        unsigned seed = static_cast<unsigned>(i) + 1;
        if (round == 0)
          start.times = Improve(p_, start.order, all / 12, 0, bound_);
        else if (tiny)
          start.times = Improve(p_, start.order, all, static_cast<int>(seed), bound_);
        else
          start.times = Tabu(p_, start.order, all / 6, seed, bound_);
        if (start.times.Better(best_.times)) best_ = start;
      }
    }
  }
};

}  // namespace

TimedOrder FindOrder(const OrderProblem& problem, long effort, double bound) {
  return OrderSearch(problem, effort, bound).Run();
}

}  // namespace pipewright
