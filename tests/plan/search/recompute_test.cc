#include "plan/search/recompute.h"

#include <gtest/gtest.h>

#include <set>

#include "plan/search/placements.h"
#include "plan/simulate/lower_bound.h"

namespace pipewright {

namespace {

using Flags = std::vector<char>;

// Returns `stages` stages of unit costs; those of `offered` may recompute.
Costs Offering(int stages, const std::set<int>& offered) {
  Costs costs;
  for (int s = 0; s < stages; ++s) {
    StageCosts& c = costs.stages.emplace_back();
    c.F = c.I = c.W = 1, c.B = 2, c.activation = 4;
    if (offered.contains(s)) c.recompute = 1, c.checkpoint = 1;
  }
  return costs;
}

}  // namespace

TEST(Recompute, IsOfferedByCosts) {
  EXPECT_EQ(RecomputeOffered(Offering(3, {0, 2}), 3), (Flags{1, 0, 1}));
  EXPECT_EQ(RecomputeOffered(Offering(3, {}), 3), Flags());
  EXPECT_EQ(RecomputeOffered(Offering(1, {0}), 3), (Flags{1, 1, 1}));  // one entry for all stages
}

TEST(Recompute, IsNotChosenWithoutNeed) {
  const StagePlacement placement = ParsePlacement("loop", 2, 2);
  const std::vector<Flags> none = {{}};
  EXPECT_EQ(RecomputeChoices(Offering(2, {}), 2, placement, 4, 8, 10000, 9), none);
  EXPECT_EQ(RecomputeChoices(Offering(2, {0, 1}), 2, placement, 4, kNoLimit, 10000, 9), none);
}

TEST(Recompute, TriesAllSetsOfFewStages) {
  const StagePlacement placement = ParsePlacement("loop", 3, 3);
  const auto choices = RecomputeChoices(Offering(3, {0, 2}), 3, placement, 4, 8, 10000, 9);
  EXPECT_EQ(std::set<Flags>(choices.begin(), choices.end()),
            (std::set<Flags>{{}, {1, 0, 0}, {0, 0, 1}, {1, 0, 1}}));
  EXPECT_EQ(choices.size(), 4u);
}

// Stage 3 does not offer it. The best set is first, and fewer are the first of more.
TEST(Recompute, ClimbsOverManyStages) {
  const StagePlacement placement = ParsePlacement("loop", 3, 6);
  const Costs costs = Offering(6, {0, 1, 2, 4, 5});
  auto choices = [&](size_t count) {
    return RecomputeChoices(costs, 3, placement, 6, 13, 100000, count);
  };
  const std::vector<Flags> best = {{1, 0, 0, 0, 0, 0}, {}, {1, 1, 0, 0, 0, 0}};
  EXPECT_EQ(choices(3), best);
  std::vector<Flags> more = best;
  more.insert(more.end(),
              {{1, 0, 1, 0, 0, 0}, {1, 1, 1, 0, 0, 0}, {1, 0, 0, 0, 0, 1}, {1, 1, 1, 0, 1, 1}});
  EXPECT_EQ(choices(9), more);
  double before = 0;
  for (const Flags& choice : more) {
    long effort = 100000;
    const double span =
        QuickSpan(MakeOrderProblem(costs, 3, placement, 6, 13, choice, false), effort);
    EXPECT_GE(span, before);
    before = span;
  }
}

}  // namespace pipewright
