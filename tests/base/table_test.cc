#include "base/table.h"

#include <gtest/gtest.h>

namespace pipewright {

TEST(Table, ColumnsAreAsWideAsTheirWidestCell) {
  EXPECT_EQ(FormatTable({{"name", "bytes", "why"}, {"a", "1024", "first"}, {"longer", "2", ""}}),
            "name    bytes  why\n"
            "a       1024   first\n"
            "longer  2      \n");
}

TEST(Table, CountsCharactersAndNotBytes) {
  EXPECT_EQ(FormatTable({{"±1", "x"}, {"abc", "y"}}), "±1   x\nabc  y\n");
}

TEST(Table, RowsMayHaveDifferentLengths) {
  EXPECT_EQ(FormatTable({{"a"}, {"bb", "c"}, {}}), "a\nbb  c\n\n");
  EXPECT_EQ(FormatTable({}), "");
}

}  // namespace pipewright
