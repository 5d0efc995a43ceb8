#include "plan/schedules/table.h"

#include <gtest/gtest.h>

#include <set>

namespace pipewright {

TEST(ScheduleTable, NamesAreUniqueAndFound) {
  std::set<std::string> names;
  for (const ScheduleKind& kind : Schedules()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_EQ(FindSchedule(kind.name), &kind);
  }
  EXPECT_GT(names.size(), 15u);
  EXPECT_EQ(FindSchedule("1F1B"), nullptr);
  EXPECT_EQ(FindSchedule(""), nullptr);
}

TEST(ScheduleTable, OnlySearchedAndAsynchronousOnesTakeMoreThanNumbers) {
  for (const ScheduleKind& kind : Schedules()) {
    EXPECT_EQ(kind.make == nullptr, kind.searched || kind.asynchronous) << kind.name;
    EXPECT_GE(kind.stages_per_rank, 1) << kind.name;
    if (!kind.asynchronous) {
      EXPECT_EQ(kind.weight_versions, 1) << kind.name;
    }
  }
}

}  // namespace pipewright
