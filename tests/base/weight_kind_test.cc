// Checks that the kinds of weights are read from the names that they are written as.
#include "base/weight_kind.h"

#include <gtest/gtest.h>

namespace pipewright {

TEST(WeightKind, HasOneNameEach) {
  const std::pair<const char*, WeightKind> kNames[] = {{"parameter", WeightKind::kParameter},
                                                       {"buffer", WeightKind::kBuffer},
                                                       {"constant", WeightKind::kConstant}};
  for (const auto& [name, kind] : kNames) {
    EXPECT_STREQ(ToText(kind), name);
    EXPECT_EQ(WeightKindFromText(name), kind) << name;
  }
}

TEST(WeightKind, OtherNamesAreNone) {
  for (const char* name : {"", "Parameter", "parameters", "buffer ", "const", "0"})
    EXPECT_EQ(WeightKindFromText(name), std::nullopt) << name;
}

}  // namespace pipewright
