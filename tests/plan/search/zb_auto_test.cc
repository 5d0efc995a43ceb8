#include "plan/search/zb_auto.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "plan/lowering/validate.h"
#include "plan/plan_text.h"
#include "plan/schedules/order_problem.h"
#include "plan/search/find_order.h"
#include "plan/search/placements.h"
#include "plan/search/stages.h"
#include "plan/simulate/measure.h"
#include "plan/stage_graph.h"
#include "tests/plan/schedules/exhaustive_order.h"
#include "tests/plan/schedules/order_lists.h"

namespace pipewright {
namespace {

// Checks that the plan agrees with the result, is valid, and is within the limit.
void Check(const ZbAutoResult& found, const Costs& costs, double memory) {
  SimulateOptions options;
  options.recompute = found.recompute;
  Figures figures = Measure(found.plan, costs, Simulate(found.plan, costs, options), options);
  EXPECT_NEAR(figures.span, found.span, 1e-9 * found.span);
  EXPECT_NEAR(figures.makespan, found.makespan, 1e-9 * found.makespan);
  EXPECT_GE(found.span, found.bound.span * (1 - 1e-9));
  EXPECT_GE(found.makespan, found.bound.makespan * (1 - 1e-9));
  for (const RankFigures& rank : figures.ranks) EXPECT_LE(rank.peak_bytes, memory * (1 + 1e-12));
  ValidateSchedule(found.plan, GraphOf(found.plan));
}

Costs RowCosts(const Json& row, int chunks) {
  Costs costs = orders::Uniform(row["F"].get<double>() / chunks, row["B"].get<double>() / chunks,
                                row["W"].get<double>() / chunks, row["comm"]);
  costs.stages[0].activation = row["mem_F"].get<double>() / chunks;
  costs.stages[0].kept_for_W = -row["mem_W"].get<double>() / chunks;
  return costs;
}

TEST(ZbAuto, NoWorseThanThePublishedRows) {
  Json rows = ReadJson(TEST_DIR "/data/schedules/zero_bubble_rows.json");
  for (const char* table : {"iclr", "arxiv"})
    for (const Json& row : rows[table]) {
      int p = row["p"], m = row["m"];
      double once = p * row["mem_F"].get<double>();
      auto run = [&](int chunks, double memory, const char* published) {
        Costs costs = RowCosts(row, chunks);
        ZbAutoOptions options;
        options.memory = memory;
        options.effort = 0.5;
        ZbAutoResult found = ZbAuto(costs, p, chunks * p, m, options);
        Check(found, costs, memory);
        if (row.contains(published)) {
          EXPECT_LE(found.span, row[published].get<double>() + 1e-6)
              << published << " " << p << " " << m;
        }
        return found;
      };
      ZbAutoResult single = run(1, once, "span_ZB1p_heuristic");
      EXPECT_NEAR(single.span, single.bound.span, 1e-6 * single.span);  // optimal for its map
      ZbAutoResult twice = run(1, 2 * once, "span_ZB2p_heuristic");
      EXPECT_LE(twice.span, twice.bound.span * 1.0025);
      ZbAutoResult v = run(2, once, "span_ZBV_heuristic");
      EXPECT_NEAR(v.span, v.bound.span, 1e-6 * v.span);
      EXPECT_LE(v.span, row["T_ZBH1"].get<double>());
    }
}

// The search starts from what a named schedule reaches within the memory, W included.
TEST(ZbAuto, NoWorseThanTheNamedSchedules) {
  for (double latency : {0, 1}) {
    Costs costs = orders::Uniform(20, 18, 12, latency);
    ZbAutoOptions options;
    options.memory = 24, options.effort = 0.02;
    double found = ZbAuto(costs, 24, 24, 72, options).span;
    for (const char* name : {"1f1b", "zb-h1"}) {
      Plan plan = MakeSchedule(name, 24, 24, 72, {});
      EXPECT_LE(found, Measure(plan, costs, Simulate(plan, costs)).span) << name << latency;
    }
  }
}

// If smaller stages lower the bound below 1 % at the memory of 1F1B, the order follows.
TEST(ZbAuto, BelowOnePercentWithFourStagesARank) {
  Json row = ReadJson(TEST_DIR "/data/schedules/zero_bubble_rows.json")["iclr"][4];
  int p = row["p"], m = row["m"];
  Costs costs = RowCosts(row, 4);
  ZbAutoOptions options;
  options.memory = p * row["mem_F"].get<double>() * (1 + 1e-9);
  for (int s = 0; s < 4 * p; ++s)  // down the ranks three times, then up
    options.placement.push_back({s < 3 * p ? s % p : 4 * p - 1 - s});
  ZbAutoResult found = ZbAuto(costs, p, 4 * p, m, options);
  Check(found, costs, options.memory);
  EXPECT_LT(1 - row["ideal"].get<double>() / found.span, 0.01);
}

// Three stages per rank: a placement that is neither a V nor a loop. Long latencies: neighboring
// stages on one rank.
TEST(ZbAuto, OtherMapsThanVAndLoop) {
  auto span = [](const Costs& costs, int stages, const char* placement) {
    ZbAutoOptions options;
    options.memory = 4 * stages;
    options.effort = 0.15;
    if (*placement) options.placement = ParsePlacement(placement, 4, stages);
    ZbAutoResult found = ZbAuto(costs, 4, stages, 16, options);
    Check(found, costs, options.memory);
    EXPECT_LE(found.any_map, found.span * (1 + 1e-9));
    return found.span;
  };
  for (auto [stages, latency] : {std::pair(12, 1), std::pair(16, 6)}) {
    Costs costs = orders::Uniform(10, 9, 6, latency);
    costs.stages[0].activation = 4, costs.stages[0].kept_for_W = 1;
    double least = std::min(span(costs, stages, "v"), span(costs, stages, "loop"));
    EXPECT_LT(span(costs, stages, ""), least) << stages;
  }
}

// Checks the bound that holds for any map against every map of tiny cases.
TEST(ZbAuto, AnyMapBoundHoldsOnEveryMap) {
  std::mt19937 random(11);
  auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % (high - low + 1));
  };
  for (int n = 0; n < 25; ++n) {
    int stages = pick(2, 4), m = pick(1, stages == 4 ? 2 : 3);
    Costs costs = orders::Uniform(pick(1, 5), pick(1, 5), pick(1, 5), pick(0, 2));
    costs.stages[0].activation = 4, costs.stages[0].kept_for_W = pick(0, 3);
    ZbAutoOptions options;
    options.memory = 4 * pick(stages, stages * m);
    double bound = AnyMapBound(costs, 2, stages, m, options.memory, false);
    for (int bits = 1; bits + 1 < 1 << stages; ++bits) {
      options.placement.assign(stages, {});
      for (int s = 0; s < stages; ++s) options.placement[s] = {bits >> s & 1};
      EXPECT_GE(ZbAuto(costs, 2, stages, m, options).span, bound * (1 - 1e-9));
    }
  }
}

struct Tiny {
  exhaustive::Instance one;
  Costs costs;
  ZbAutoResult found;
};

Tiny MakeTiny(std::mt19937& random, int ranks, int microbatches, int chunks) {
  auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % (high - low + 1));
  };
  Tiny tiny;
  exhaustive::Instance& c = tiny.one;
  c.ranks = ranks, c.microbatches = microbatches;
  StagePlacement placement = ParsePlacement(chunks == 2 ? "v" : "loop", ranks, chunks * ranks);
  for (const auto& on : placement) c.rank_of.push_back(on[0]);
  c.F = pick(1, 5), c.I = pick(1, 5), c.W = pick(1, 5), c.latency = pick(0, 2);
  c.activation = 4, c.kept = pick(0, 3);
  c.memory = c.activation * pick(chunks, chunks * microbatches);
  tiny.costs = orders::Uniform(c.F, c.I, c.W, c.latency);
  tiny.costs.stages[0].activation = c.activation;
  tiny.costs.stages[0].kept_for_W = c.kept;
  ZbAutoOptions options;
  options.memory = c.memory;
  options.placement = placement;
  tiny.found = ZbAuto(tiny.costs, ranks, chunks * ranks, microbatches, options);
  Check(tiny.found, tiny.costs, c.memory);
  return tiny;
}

// Bounds are valid, and zb-auto finds the optimum.
TEST(ZbAuto, TinyCasesAgainstExhaustiveSearch) {
  std::mt19937 random(7);
  struct Size {
    int ranks, microbatches, chunks, cases;
  };
  for (Size size : {Size{1, 4, 1, 5}, Size{2, 2, 1, 30}, Size{2, 3, 1, 30}, Size{2, 4, 1, 20},
                    Size{2, 2, 2, 20}, Size{2, 3, 2, 6}, Size{3, 2, 1, 20}, Size{3, 3, 1, 10},
                    Size{3, 4, 1, 4}, Size{3, 2, 2, 4}})
    for (int n = 0; n < size.cases; ++n) {
      Tiny tiny = MakeTiny(random, size.ranks, size.microbatches, size.chunks);
      exhaustive::Search search(tiny.one, true);
      int span = static_cast<int>(tiny.found.span);
      int least = search.Least(span);
      std::string what = std::to_string(size.ranks) + " ranks, " +
                         std::to_string(size.microbatches) + " microbatches, F I W c " +
                         std::to_string(tiny.one.F) + " " + std::to_string(tiny.one.I) + " " +
                         std::to_string(tiny.one.W) + " " + std::to_string(tiny.one.latency) +
                         ", memory " + std::to_string(tiny.one.memory);
      EXPECT_EQ(span, least) << what;
      EXPECT_LE(tiny.found.bound.span, least) << what;
      if (size.ranks * size.microbatches * size.chunks > 8) continue;
      int makespan =
          exhaustive::Search(tiny.one, false).Least(static_cast<int>(tiny.found.makespan) + 1);
      EXPECT_LE(tiny.found.bound.makespan, makespan) << what;
    }
}

// Recomputation is chosen per stage: no set of stages and no order is better.
TEST(ZbAuto, RecomputeAgainstExhaustiveSearch) {
  std::mt19937 random(5);
  auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % (high - low + 1));
  };
  int some = 0;
  for (int n = 0; n < 24; ++n) {
    exhaustive::Instance one;
    int chunks = n % 4 == 3 ? 2 : 1;
    one.ranks = n % 3 == 2 && chunks == 1 ? 3 : 2;
    one.microbatches = chunks == 2 || one.ranks == 3 ? 2 : pick(2, 3);
    int stages = one.ranks * chunks;
    StagePlacement placement = ParsePlacement(chunks == 2 ? "v" : "loop", one.ranks, stages);
    for (const auto& on : placement) one.rank_of.push_back(on[0]);
    one.F = pick(1, 4), one.I = pick(1, 4), one.W = pick(1, 4), one.latency = pick(0, 1);
    one.activation = 6, one.kept = pick(0, 2);
    one.memory = one.activation * chunks + pick(0, 5);
    Costs costs = orders::Uniform(one.F, one.I, one.W, one.latency);
    StageCosts stage = costs.stages[0];
    stage.activation = one.activation, stage.kept_for_W = one.kept;
    costs.stages.clear();
    for (int s = 0; s < stages; ++s) {
      stage.recompute = pick(0, 3) == 0 ? -1 : pick(0, one.F);
      stage.checkpoint = pick(1, 3);
      costs.stages.push_back(stage);
    }
    ZbAutoOptions options;
    options.memory = one.memory, options.placement = placement, options.effort = 0.1;
    ZbAutoResult found = ZbAuto(costs, one.ranks, stages, one.microbatches, options);
    Check(found, costs, one.memory);
    int least = static_cast<int>(found.span) + 1;
    for (int bits = 0; bits < 1 << stages; ++bits) {
      exhaustive::Instance with = one;
      bool offered = true;
      for (int s = 0; s < stages; ++s) {
        bool again = bits >> s & 1;
        offered &= !again || costs.stages[s].recompute >= 0;
        with.again.push_back(again ? static_cast<int>(costs.stages[s].recompute) : 0);
        with.stored.push_back(again ? costs.stages[s].checkpoint : one.activation);
      }
      if (offered) least = std::min(least, exhaustive::Search(with, true).Least(least));
    }
    EXPECT_EQ(found.span, least) << n;
    size_t chosen = std::count(found.recompute.begin(), found.recompute.end(), 1);
    some += chosen > 0 && chosen < static_cast<size_t>(stages);
  }
  EXPECT_GT(some, 3);
}

TEST(ZbAuto, AnyNumbersGiveAValidPlanWithinTheLimit) {
  std::mt19937 random(3);
  auto pick = [&](int low, int high) {
    return low + static_cast<int>(random() % (high - low + 1));
  };
  int replicas = 0, forward_only = 0;
  for (int n = 0; n < 80; ++n) {
    int ranks = pick(1, 5), stages = ranks + pick(0, 6), microbatches = pick(1, 9);
    Costs costs;
    double one = 0;
    for (int s = 0; s < stages; ++s) {
      StageCosts& c = costs.stages.emplace_back();
      c.F = pick(1, 9), c.I = pick(1, 9), c.W = pick(0, 9), c.B = c.I + c.W;
      c.activation = pick(1, 9), c.kept_for_W = pick(0, static_cast<int>(c.activation));
      one += c.activation;
    }
    costs.link.latency = pick(0, 4);
    ZbAutoOptions options;
    options.memory = one * pick(1, 4);
    options.effort = 0.02;
    options.forward_only = pick(0, 9) == 0;
    forward_only += options.forward_only;
    if (pick(0, 1)) {
      options.placement.resize(stages);
      for (int s = 0; s < stages; ++s) options.placement[s] = {s < ranks ? s : pick(0, ranks - 1)};
      if (ranks > 1 && pick(0, 1)) {
        int s = pick(0, stages - 1), r = options.placement[s][0];
        options.placement[s].push_back((r + 1) % ranks);
        ++replicas;
      }
    }
    ZbAutoResult found = ZbAuto(costs, ranks, stages, microbatches, options);
    EXPECT_EQ(found.plan.microbatches, microbatches);
    for (const auto& actions : found.plan.ranks)
      for (const Action& a : actions)
        EXPECT_TRUE(!options.forward_only || a.kind == ActionKind::kForward);
    Check(found, costs, options.memory);
  }
  EXPECT_GT(replicas, 5);
  EXPECT_GT(forward_only, 2);
}

TEST(ZbAuto, SameInputSameBytes) {
  Costs costs = orders::Uniform(5, 4, 3, 1);
  ZbAutoOptions options;
  options.memory = 6;
  options.effort = 0.1;
  std::string once = WritePlan(ZbAuto(costs, 4, 8, 11, options).plan);
  EXPECT_EQ(once, WritePlan(ZbAuto(costs, 4, 8, 11, options).plan));
}

TEST(ZbAuto, UnitCostsLeaveNoBubbleOnTheVMap) {
  for (int p : {2, 4, 8}) {
    ZbAutoOptions options;
    options.memory = 2 * p;
    ZbAutoResult found = ZbAuto(orders::Uniform(1, 1, 1), p, 2 * p, 2 * p, options);
    EXPECT_EQ(found.span, 6 * 2 * p);
  }
}

TEST(ZbAuto, RecomputeWhereTheLimitAsksForIt) {
  Costs costs = orders::Uniform(2, 2, 2);
  costs.stages[0].activation = 10;
  ZbAutoOptions options;
  options.memory = 12;
  double tight = ZbAuto(costs, 4, 4, 8, options).span;
  costs.stages[0].recompute = 2, costs.stages[0].checkpoint = 0.5;
  ZbAutoResult found = ZbAuto(costs, 4, 4, 8, options);
  Check(found, costs, options.memory);
  EXPECT_FALSE(found.recompute.empty());
  EXPECT_FALSE(found.plan.recompute.empty());
  Plan read = ReadPlan(WritePlan(found.plan), "plan");
  EXPECT_EQ(read.recompute, found.plan.recompute);
  EXPECT_EQ(Measure(read, costs, Simulate(read, costs)).span, found.span);
  EXPECT_LT(found.span, tight);
  options.memory = 100;  // enough memory: no time is lost
  EXPECT_TRUE(ZbAuto(costs, 4, 4, 8, options).recompute.empty());
}

TEST(ZbAuto, Refusals) {
  Costs costs = orders::Uniform(1, 1, 1);
  costs.stages[0].activation = 3;
  ZbAutoOptions options;
  options.memory = 2;
  try {
    ZbAuto(costs, 2, 2, 4, options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("already needs 3"), std::string::npos) << e.what();
  }
  EXPECT_THROW(ZbAuto(costs, 4, 3, 4), Error);
  options.memory = kNoLimit;
  for (StagePlacement wrong :
       {StagePlacement{{0}, {2}}, StagePlacement{{0}, {0}}, StagePlacement{{0, 0}, {1}}}) {
    options.placement = wrong;
    EXPECT_THROW(ZbAuto(costs, 2, 2, 4, options), Error);
  }
  // Fewer stages than ranks, with replicas.
  options.placement = {{0, 1}, {2}};
  Check(ZbAuto(costs, 3, 2, 5, options), costs, options.memory);
}

TEST(ZbAuto, StagesFromAFinerProfile) {
  Costs profile;
  for (int work : {1, 1, 4, 1, 1, 2, 1, 1}) {
    StageCosts& c = profile.stages.emplace_back();
    c.F = c.I = c.W = work, c.B = 2 * work;
    c.output = work;
    c.step = 3;
  }
  profile.disk = {5, 1e6};
  Costs four = MergeStages(profile, 4);
  double steps = 0;
  for (const StageCosts& c : four.stages) steps += c.step;
  EXPECT_EQ(steps, 8 * 3);
  EXPECT_EQ(four.disk.latency, 5);
  ASSERT_EQ(four.stages.size(), 4u);
  double most = 0, all = 0;
  for (const StageCosts& c : four.stages) most = std::max(most, c.F), all += c.F;
  EXPECT_EQ(most, 4);
  EXPECT_EQ(all, 12);
  EXPECT_EQ(four.stages[3].output, 1);
  EXPECT_EQ(MergeStages(profile, 8).stages.size(), 8u);
  EXPECT_THROW(MergeStages(profile, 9), Error);

  Costs fine;
  fine.stages.assign(16, orders::Uniform(1, 1, 1).stages[0]);
  ZbAutoOptions options;
  options.memory = 16;  // the most that 1F1B holds on 4 ranks
  Costs costs;
  ZbAutoResult found = ZbAutoStages(fine, 4, 12, options, costs);
  Check(found, costs, options.memory);
  EXPECT_EQ(found.span, 12 * 12);
}

}  // namespace
}  // namespace pipewright
