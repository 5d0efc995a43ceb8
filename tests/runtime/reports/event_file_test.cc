#include "runtime/reports/event_file.h"

#include <gtest/gtest.h>

#include <string>

namespace pipewright {

// The first is the usual check value; the others are from RFC 3720, B.4.
TEST(Crc32c, OfKnownTexts) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(Crc32c(""), 0u);
}

}  // namespace pipewright
