#include "base/size.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace pipewright {

TEST(Size, UnitsOf1000And1024) {
  const std::pair<const char*, int64_t> kCases[] = {{"0MB", 0},
                                                    {"100MB", 100000000},
                                                    {"2GiB", 2147483648},
                                                    {"512KiB", 524288},
                                                    {"1.5GB", 1500000000},
                                                    {"500", 500},
                                                    {" 1GB", 1000000000},
                                                    {"1e3MB", 1000000000},
                                                    {"1gib", 1073741824},
                                                    {"10 kB", 10000},
                                                    {"8G", 8589934592},
                                                    {"1.5 k", 1536},
                                                    {"2T", 2199023255552},
                                                    {"0", 0},
                                                    {"7B", 7},
                                                    {"1TiB", 1099511627776},
                                                    {"9223372036854775807", INT64_MAX},
                                                    {"1.0000001KB", 1000}};
  for (auto [text, bytes] : kCases) EXPECT_EQ(ParseSize(text, "--max"), bytes) << text;
}

TEST(Size, RefusesOtherText) {
  for (const char* text :
       {"", " ", "-1GB", "-5", "5MBB", "5k0MB", "10X", "G", "10GG", "GB", "1GB2", "1 000", "nan",
        "infGB", "1e30GB", "9223372036854775808", "0x10", "1,5GB"})
    EXPECT_THROW(ParseSize(text, "--max"), Error) << text;
  for (const char* text : {"1Gb", "10kb", "1gb", "1Gib", "5b"}) try {
      ParseSize(text, "--max");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("bits"), std::string::npos) << e.what();
    }
}

TEST(Size, PrintsFourDigits) {
  EXPECT_EQ(SizeText(236), "236 B");
  EXPECT_EQ(SizeText(1536), "1.5 KiB");
  EXPECT_EQ(SizeText(int64_t{10} << 30), "10 GiB");
}

}  // namespace pipewright
