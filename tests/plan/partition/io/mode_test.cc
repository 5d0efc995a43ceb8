// Checks the values of --mode and --objective, and the errors for others.
#include "plan/partition/io/mode.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace pipewright {
namespace {

TEST(PartitionMode, IsReadFromItsName) {
  const std::pair<const char*, PartitionMode> kNames[] = {{"exact", PartitionMode::kExact},
                                                          {"fast", PartitionMode::kFast},
                                                          {"pipedream", PartitionMode::kPipeDream}};
  for (const auto& [name, mode] : kNames) {
    EXPECT_STREQ(ToText(mode), name);
    EXPECT_EQ(PartitionModeFromText(name), mode) << name;
  }
}

TEST(PartitionMode, OtherNamesAreRefused) {
  for (const std::string name : {"", "Exact", "fast ", "1f1b"})
    EXPECT_EQ(ErrorOf([&] { PartitionModeFromText(name); }),
              "--mode: \"" + name + "\" is not exact, fast or pipedream");
}

TEST(PartitionObjective, IsReadFromItsName) {
  EXPECT_EQ(PartitionObjectiveFromText("bottleneck"), PartitionObjective::kBottleneck);
  EXPECT_EQ(PartitionObjectiveFromText("step"), PartitionObjective::kStep);
  for (const std::string name : {"", "Step", "steps", "exact"})
    EXPECT_EQ(ErrorOf([&] { PartitionObjectiveFromText(name); }),
              "--objective: \"" + name + "\" is not bottleneck or step");
}

}  // namespace
}  // namespace pipewright
