#include "plan/zb_anneal.h"

#include <gtest/gtest.h>

#include <tuple>

#include "plan/zb_order.h"
#include "plan/zb_search.h"
#include "tests/plan/order_lists.h"

namespace pipewright {

// What annealing says of its order is so, and no order becomes worse.
TEST(Anneal, KeepsOrdersRight) {
  int better = 0;
  for (auto [stages, limit, kept] : {std::tuple(8, 6.0, 0.5), {12, 9.0, 0.0}, {4, 4.0, 1.0}}) {
    Costs costs = orders::Uniform(10, 9, 6, 1);
    costs.stages[0].kept_for_W = kept;
    OrderProblem problem =
        MakeProblem(costs, 4, ParsePlacement("v", 4, stages), 12, limit, {}, false);
    Order order = FindOrder(problem, 100'000, 0).order;
    OrderTimer timer(problem);
    double before = timer.Time(order).span;
    Order again = order;
    OrderTimes found = Anneal(problem, order, 10'000'000, 1);
    OrderTimes timed = timer.Time(order);
    ASSERT_TRUE(found.ok && timed.ok);
    EXPECT_NEAR(timed.span, found.span, 1e-9 * found.span);
    EXPECT_LE(timed.span, before * (1 + 1e-12));
    better += timed.span < before;
    for (int r = 0; r < 4; ++r) EXPECT_TRUE(timer.Fits(r, order[r]));
    Anneal(problem, again, 10'000'000, 1);
    EXPECT_EQ(again, order);
  }
  EXPECT_GE(better, 1);
}

}  // namespace pipewright
