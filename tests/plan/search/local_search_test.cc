// Compares the searches over orders (improve.h, tabu.h, due_search.h) with the optima of small
// pipelines, which an exhaustive search finds.
#include <gtest/gtest.h>

#include <algorithm>

#include "plan/schedules/dispatch.h"
#include "plan/search/critical_path.h"
#include "plan/search/due_search.h"
#include "plan/search/improve.h"
#include "plan/search/tabu.h"
#include "tests/plan/schedules/exhaustive_order.h"

namespace pipewright {

namespace {

struct Small {
  exhaustive::Instance instance;
  OrderProblem problem;
};

// Returns stage s on rank s mod `ranks`, with a memory limit in activations.
Small Pipeline(int ranks, int stages, int microbatches, int F, int I, int W, double memory) {
  Small small;
  small.instance.ranks = ranks, small.instance.microbatches = microbatches;
  small.instance.F = F, small.instance.I = I, small.instance.W = W;
  small.instance.memory = memory;
  Costs costs;
  StagePlacement placement;
  for (int s = 0; s < stages; ++s) {
    small.instance.rank_of.push_back(s % ranks);
    placement.push_back({s % ranks});
    StageCosts& c = costs.stages.emplace_back();
    c.F = F, c.I = I, c.W = W, c.B = I + W, c.activation = 1;
  }
  small.problem = MakeOrderProblem(costs, ranks, placement, microbatches, memory, {}, false);
  return small;
}

std::vector<Small> Cases() {
  return {Pipeline(2, 2, 3, 1, 1, 1, 2), Pipeline(2, 2, 3, 2, 3, 1, 3),
          Pipeline(2, 4, 2, 1, 1, 1, 4), Pipeline(3, 3, 2, 1, 2, 1, 2)};
}

// Returns the order that has one microbatch at a time, which always fits.
RankOrders OneAtATime(const OrderProblem& p) {
  RankOrders order(p.ranks);
  for (int m = 0; m < p.microbatches; ++m) {
    for (int s = 0; s < p.stages; ++s) order[p.RankOf(s, m)].push_back({OpKind::kF, s, m});
    for (int s = p.stages; s-- > 0;) {
      order[p.RankOf(s, m)].push_back({OpKind::kI, s, m});
      order[p.RankOf(s, m)].push_back({OpKind::kW, s, m});
    }
  }
  return order;
}

// Expects that `order` has each action of `p` once, fits, and ends at `times` at the latest.
void ExpectValid(const OrderProblem& p, const RankOrders& order, const OrderTimes& times) {
  CriticalPaths paths(p, order);
  const OrderTimes again = paths.Time();
  EXPECT_TRUE(times.ok && again.ok);
  EXPECT_LE(again.makespan, times.makespan + 1e-9);
  const RankOrders all = OneAtATime(p);
  for (int r = 0; r < p.ranks; ++r) {
    EXPECT_TRUE(paths.Fits(r));
    EXPECT_TRUE(std::is_permutation(order[r].begin(), order[r].end(), all[r].begin(),
                                    all[r].end()));
  }
}

int Optimum(const Small& small) {
  return exhaustive::Search(small.instance, /*span=*/true).Least(1000);
}

}  // namespace

TEST(Improve, FindsTheOptimumOfSmallPipelines) {
  for (const Small& small : Cases()) {
    RankOrders order = OneAtATime(small.problem);
    const double before = CriticalPaths(small.problem, order).Time().span;
    const OrderTimes times = Improve(small.problem, order, 20000, 1);
    ExpectValid(small.problem, order, times);
    EXPECT_EQ(CriticalPaths(small.problem, order).Time().span, times.span);
    EXPECT_LT(times.span, before);
    EXPECT_EQ(times.span, Optimum(small));
  }
}

TEST(Improve, DescendsOnlyWithoutASeed) {
  for (const Small& small : Cases()) {
    RankOrders order = OneAtATime(small.problem), again = order;
    const double before = CriticalPaths(small.problem, order).Time().span;
    const OrderTimes times = Improve(small.problem, order, 1000, 0);
    ExpectValid(small.problem, order, times);
    EXPECT_EQ(CriticalPaths(small.problem, order).Time().span, times.span);
    EXPECT_LT(times.span, before);
    EXPECT_GE(times.span, Optimum(small));
    EXPECT_EQ(Improve(small.problem, again, 1000, 0).span, times.span);
    EXPECT_EQ(again, order);
  }
}

TEST(Tabu, FindsTheOptimumOfSmallPipelines) {
  for (const Small& small : Cases()) {
    RankOrders order = OneAtATime(small.problem);
    const OrderTimes times = Tabu(small.problem, order, 20000, 1);
    ExpectValid(small.problem, order, times);
    EXPECT_EQ(CriticalPaths(small.problem, order).Time().span, times.span);
    EXPECT_EQ(times.span, Optimum(small));
  }
}

TEST(Tabu, RepeatsItselfAndStopsAtEnough) {
  const Small small = Pipeline(3, 3, 4, 2, 3, 1, 3);
  RankOrders first = OneAtATime(small.problem), second = first, same = first;
  EXPECT_EQ(Tabu(small.problem, first, 300, 5).span, Tabu(small.problem, second, 300, 5).span);
  EXPECT_EQ(first, second);
  const RankOrders start = same;
  Tabu(small.problem, same, 300, 5, /*enough=*/1e6);
  EXPECT_EQ(same, start);
}

TEST(DueSearch, ComesNearTheOptimumOfSmallPipelines) {
  for (const Small& small : Cases()) {
    DueSearch search(small.problem, 96, 1), twin(small.problem, 96, 1);
    double least = kNever;
    for (int i = 0; i < 1000; ++i) {
      EXPECT_EQ(search.starting(), i < 96);
      const TimedOrder& tried = search.Next();
      EXPECT_EQ(twin.Next().order, tried.order);
      if (!tried.times.ok) continue;
      ExpectValid(small.problem, tried.order, tried.times);
      long actions = 0;
      for (const auto& list : tried.order) actions += static_cast<long>(list.size());
      EXPECT_EQ(search.played(), actions);
      least = std::min(least, tried.times.span);
      EXPECT_EQ(search.best().span, least);
    }
    EXPECT_GE(least, Optimum(small));
    EXPECT_LE(least, Optimum(small) + 1);
  }
}

TEST(DueSearch, FindsNothingIfOneMicrobatchDoesNotFit) {
  const Small small = Pipeline(2, 4, 2, 1, 1, 1, 1.5);  // each rank has two stages
  DueSearch search(small.problem, 8, 1);
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(search.Next().times.ok);
  EXPECT_FALSE(search.best().ok);
}

}  // namespace pipewright
