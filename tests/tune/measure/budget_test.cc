// Durations as users write them, and what ends a budget.
#include "tune/measure/budget.h"

#include <gtest/gtest.h>

#include <csignal>

#include "base/error.h"
#include "tests/error_text.h"

namespace pipewright {
namespace {

TEST(TuneBudget, ReadsDurations) {
  EXPECT_EQ(ParseDuration("90", "--budget"), 90);
  EXPECT_EQ(ParseDuration("1.5s", "--budget"), 1.5);
  EXPECT_EQ(ParseDuration("2m", "--budget"), 120);
  EXPECT_EQ(ParseDuration("2min", "--budget"), 120);
  EXPECT_EQ(ParseDuration("1h", "--budget"), 3600);
  for (const char* wrong : {"", "m", "2 m x", "-1s", "inf", "1d"})
    EXPECT_EQ(ErrorOf([&] { ParseDuration(wrong, "--budget"); }),
              "--budget: \"" + std::string(wrong) +
                  "\" is not a duration\n  give seconds, or a number with s, m or h: 90, 90s, 2m, "
                  "1h");
  EXPECT_EQ(DurationText(7.2), "8 s");
  EXPECT_EQ(DurationText(179), "3 min");
  EXPECT_EQ(DurationText(9000), "3 h");
}

TEST(TuneBudget, EndsByTimeOrInterrupt) {
  EXPECT_TRUE(TuneBudget(0).IsOver());
  const TuneBudget all;
  EXPECT_FALSE(all.IsOver());
  EXPECT_LE(TuneBudget(1000).Share(0.25).Left(), 250);
  EXPECT_EQ(all.Ended(), "--budget");
  {
    const InterruptsEndBudgets interrupts;
    EXPECT_FALSE(all.IsOver());
    std::raise(SIGINT);
    EXPECT_TRUE(all.IsOver());
    EXPECT_EQ(all.Ended(), "the interrupt");
    EXPECT_NE(*all.Limits().stop, 0);
  }
  EXPECT_FALSE(all.IsOver());
}

// A signal while a model file is cut ends what follows.
TEST(TuneBudget, InterruptsLastUntilTheOutermostObjectEnds) {
  const InterruptsEndBudgets outer;
  std::raise(SIGINT);
  {
    const InterruptsEndBudgets inner;
    EXPECT_TRUE(TuneBudget().IsOver());
  }
  EXPECT_TRUE(TuneBudget().IsOver());
}

TEST(TuneBudget, LeavesSignalsAsTheyWere) {
  const auto before = std::signal(SIGINT, SIG_IGN);  // as in the background of a shell
  {
    const InterruptsEndBudgets interrupts;
    std::raise(SIGINT);
    EXPECT_FALSE(TuneBudget().IsOver());
  }
  EXPECT_EQ(std::signal(SIGINT, before), SIG_IGN);
}

}  // namespace
}  // namespace pipewright
