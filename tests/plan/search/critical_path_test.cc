// Compares the search's players with the simulator: the same orders have the same times and memory.
#include <gtest/gtest.h>

#include <random>

#include "plan/schedules/dispatch.h"
#include "plan/schedules/list_schedule.h"
#include "plan/search/critical_path.h"
#include "plan/search/dispatch.h"
#include "plan/search/patterns.h"
#include "plan/simulate/lower_bound.h"
#include "plan/simulate/measure.h"
#include "tests/plan/random_plan.h"

namespace pipewright {
namespace {

struct Problem {
  Costs costs;
  std::vector<char> recompute;
  OrderProblem order;
};

// Costs are not integers, so that a sum in another order would show.
Problem RandomProblem(std::mt19937& random, bool replicas) {
  auto real = [&](int low, int high) { return Pick(random, low * 1000, high * 1000) / 997.0; };
  Problem p;
  int ranks = Pick(random, 1, 5), stages = Pick(random, replicas ? 1 : ranks, 9);
  StagePlacement placement = RandomPlacement(random, ranks, stages);
  for (int s = 0; !replicas && s < stages; ++s)
    placement[s] = {s < ranks ? s : Pick(random, 0, ranks - 1)};
  double all = 0;
  for (int s = 0; s < stages; ++s) {
    StageCosts& c = p.costs.stages.emplace_back();
    c.F = real(0, 9), c.I = real(1, 9), c.W = real(0, 9), c.B = c.I + c.W;
    c.activation = real(1, 9), c.kept_for_W = real(0, 1), c.weights = real(0, 3);
    c.output = real(0, 5), c.recompute = real(0, 4), c.checkpoint = real(0, 1);
    p.recompute.push_back(Pick(random, 0, 3) == 0);
    all += c.activation + c.weights;
  }
  p.costs.link = {real(0, 3), real(1, 4)};
  p.costs.links[{0, ranks - 1}] = {real(0, 9), real(1, 4)};
  p.order = MakeOrderProblem(p.costs, ranks, placement, Pick(random, 1, 9),
                             all * Pick(random, 1, 4), p.recompute, false);
  return p;
}

Plan PlanOf(const OrderProblem& p, const RankOrders& order) {
  Plan plan;
  plan.stages = p.stages, plan.microbatches = p.microbatches;
  for (const auto& list : order) {
    auto& actions = plan.ranks.emplace_back();
    for (const Op& op : list) {
      Action& a = actions.emplace_back();
      a.kind = op.kind == OpKind::kF   ? ActionKind::kForward
               : op.kind == OpKind::kI ? ActionKind::kInputGrad
                                       : ActionKind::kWeightGrad;
      a.stage = op.stage, a.microbatch = op.microbatch;
    }
  }
  return plan;
}

struct Simulated {
  ActionTrace trace;
  Figures figures;
};

Simulated SimulateOrder(const Problem& p, const RankOrders& order) {
  SimulateOptions options;
  options.recompute = p.recompute;
  Plan plan = PlanOf(p.order, order);
  Simulated s;
  s.trace = Simulate(plan, p.costs, options);
  s.figures = Measure(plan, p.costs, s.trace, options);
  return s;
}

std::vector<RankOrders> Orders(const OrderProblem& p) {
  std::vector<RankOrders> orders;
  for (int depth : {1, 2, p.microbatches}) {
    ListPolicy policy;
    policy.split = true, policy.in_flight.assign(p.stages, depth);
    orders.push_back(RankOrdersOf(ListSchedule(p.placement, p.ranks, p.microbatches, policy)));
  }
  return orders;
}

void ExpectSame(const OrderTimes& times, const Figures& figures) {
  double total = 0;
  for (const RankFigures& rank : figures.ranks) total += rank.span;
  EXPECT_EQ(times.span, figures.span);
  EXPECT_EQ(times.makespan, figures.makespan);
  EXPECT_EQ(times.total, total);
}

TEST(CriticalPath, AgreesWithTheSimulator) {
  std::mt19937 random(41);
  int stuck = 0, over = 0, within = 0;
  for (int n = 0; n < 300; ++n) {
    Problem p = RandomProblem(random, n % 2);
    for (const RankOrders& start : Orders(p.order)) {
      CriticalPaths paths(p.order, start);
      for (int moves = 0; moves < 20; ++moves) {
        OrderTimes times = moves % 2 ? paths.Time() : paths.Pass();
        RankOrders order = paths.ToOrder(paths.lists());
        if (!times.ok) {
          EXPECT_THROW(SimulateOrder(p, order), Error);
          ++stuck;
        } else {
          Simulated s = SimulateOrder(p, order);
          ExpectSame(times, s.figures);
          for (int r = 0; r < p.order.ranks; ++r) {
            for (size_t i = 0; i < order[r].size(); ++i)
              ASSERT_EQ(paths.head(paths.lists()[r][i]), s.trace.ranks[r][i].start);
            double weights = 0;
            for (int stage : p.order.held[r]) weights += p.costs.stages[stage].weights;
            bool fits = s.figures.ranks[r].peak_bytes <= p.order.Limit(r) + weights;
            EXPECT_EQ(paths.Fits(r), fits);
            ++(fits ? within : over);
          }
        }
        int r = Pick(random, 0, p.order.ranks - 1);
        int last = static_cast<int>(order[r].size()) - 1;
        if (last < 0) continue;  // a replica without a microbatch
        int from = Pick(random, 0, last), far = Pick(random, 1, 6);
        if (times.ok && Pick(random, 0, 1))
          paths.Move(r, from, paths.Later(r, from, std::min(last, from + far)));
        else if (times.ok)
          paths.Move(r, from, paths.Earlier(r, from, std::max(0, from - far)));
        else
          paths.SetLists(CriticalPaths(p.order, start).lists());
      }
    }
  }
  EXPECT_GT(stuck, 20);
  EXPECT_GT(over, 20);
  EXPECT_GT(within, 1000);
}

TEST(CriticalPath, DispatchersAgreeWithTheSimulator) {
  std::mt19937 random(42);
  int played = 0;
  for (int n = 0; n < 300; ++n) {
    Problem p = RandomProblem(random, n % 2);
    std::vector<TimedOrder> found;
    for (const RankOrders& order : Orders(p.order)) {
      RankOrders script = order;
      for (auto& list : script)
        std::erase_if(list, [](const Op& op) { return op.kind == OpKind::kW; });
      for (double gap_share : {0.0, 0.6, 1.0})
        found.push_back(PlayScript(p.order, script, gap_share));
    }
    if (p.order.one_rank_each) {
      DueTimes due;
      for (int s = 0; s < p.order.stages; ++s) {
        due.forward.push_back(Pick(random, 0, 9) + s);
        due.backward.push_back(Pick(random, 5, 20) + 2 * p.order.stages - s);
      }
      due.gap_share.fill(0.5), due.linger.fill(Pick(random, 0, 2));
      for (auto* list : {&due.forward_in, &due.backward_in, &due.forward_out, &due.backward_out})
        list->assign(p.order.stages, 0);
      found.push_back(PlayDue(p.order, due, StartUp(p.order)));
    }
    for (const TimedOrder& one : found) {
      if (!one.times.ok) continue;
      ++played;
      Simulated s = SimulateOrder(p, one.order);
      ExpectSame(one.times, s.figures);
      CriticalPaths paths(p.order, one.order);
      for (int r = 0; r < p.order.ranks; ++r) EXPECT_TRUE(paths.Fits(r));
    }
  }
  EXPECT_GT(played, 500);
}

// A list schedule with unit costs starts each action as soon as the rank and its inputs allow.
TEST(CriticalPath, ListSchedulesLeaveNothingReadyWaiting) {
  std::mt19937 random(43);
  for (int n = 0; n < 100; ++n) {
    int ranks = Pick(random, 1, 5), stages = Pick(random, 1, 8), m = Pick(random, 1, 9);
    StagePlacement placement = RandomPlacement(random, ranks, stages);
    ListPolicy policy;
    policy.split = Pick(random, 0, 1);
    Plan plan = ListSchedule(placement, ranks, m, policy);
    ActionTrace trace = Simulate(plan, UnitCosts());
    for (size_t r = 0; r < plan.ranks.size(); ++r)
      for (size_t i = 1; i < trace.ranks[r].size(); ++i) {
        const TimedAction &event = trace.ranks[r][i], &before = trace.ranks[r][i - 1];
        // Without a limit, a gap only occurs if the action's own input ends it.
        EXPECT_TRUE(event.start == before.end || event.cause_rank != static_cast<int>(r));
      }
  }
}

}  // namespace
}  // namespace pipewright
