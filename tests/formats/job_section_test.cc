#include "formats/job_section.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace pipewright {

namespace {

template <typename Read>
std::string SectionError(const std::string& text, Read read) {
  const Json json = Json::parse(text);
  return ErrorOf([&] { read(Section{json, "job.json: optimizer"}); });
}

}  // namespace

TEST(JobSection, AbsentKeysChangeNothing) {
  const Json json = Json::object();
  const Section section{json, "job.json:"};
  bool flag = true;
  int count = 7;
  double rate = 0.5;
  section.Get("flag", flag);
  section.AtLeast<int>("count", 100, count);
  section.Range("rate", 0, 1, rate);
  EXPECT_TRUE(flag);
  EXPECT_EQ(count, 7);
  EXPECT_EQ(rate, 0.5);
  EXPECT_TRUE(section.Strings("names").empty());
}

TEST(JobSection, TypesAreChecked) {
  bool flag = false;
  int64_t count = 0;
  std::string name;
  EXPECT_EQ(SectionError(R"({"flag": 1})", [&](Section s) { s.Get("flag", flag); }),
            "job.json: optimizer.flag: true or false is expected, not 1");
  EXPECT_EQ(SectionError(R"({"count": 1.5})", [&](Section s) { s.Get("count", count); }),
            "job.json: optimizer.count: a whole number is expected, not 1.5");
  EXPECT_EQ(SectionError(R"({"name": []})", [&](Section s) { s.Get("name", name); }),
            "job.json: optimizer.name: a string is expected, not []");
}

TEST(JobSection, BoundsOfWholeNumbers) {
  int count = 0;
  auto read = [&](Section s) { s.AtLeast<int>("count", 1, count, 10); };
  EXPECT_EQ(SectionError(R"({"count": 10})", read), "");
  EXPECT_EQ(count, 10);
  EXPECT_EQ(SectionError(R"({"count": 0})", read),
            "job.json: optimizer.count: 0 is out of range: at least 1");
  EXPECT_EQ(SectionError(R"({"count": 11})", read),
            "job.json: optimizer.count: 11 is out of range: at most 10");
  // Exceeds an int64; it would be negative if it wrapped around.
  EXPECT_EQ(SectionError(R"({"count": 18446744073709551615})", read),
            "job.json: optimizer.count: 18446744073709551615 is out of range: at most 10");
}

TEST(JobSection, BoundsOfNumbers) {
  double rate = 0;
  auto read = [&](Section s) { s.Range("rate", 0, 1, rate); };
  EXPECT_EQ(SectionError(R"({"rate": 0})", read), "");
  EXPECT_NE(SectionError(R"({"rate": 1})", read), "");
  EXPECT_NE(SectionError(R"({"rate": -0.1})", read), "");
}

TEST(JobSection, AStringOrAListOfStrings) {
  const Json json = Json::parse(R"({"one": "a", "two": ["a", "b"], "bad": ["a", 1]})");
  const Section section{json, "job.json:"};
  EXPECT_EQ(section.Strings("one"), (std::vector<std::string>{"a"}));
  EXPECT_EQ(section.Strings("two"), (std::vector<std::string>{"a", "b"}));
  EXPECT_THROW(section.Strings("bad"), Error);
}

TEST(JobSection, ChoicesSuggestTheNearest) {
  const std::vector<std::pair<std::string, int>> choices = {{"first", 1}, {"merge", 2}};
  EXPECT_EQ(Choose<int>("merge", choices, "job.json: buffers"), 2);
  try {
    Choose<int>("merg", choices, "job.json: buffers");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"merg\" is not known (did you mean \"merge\"?)"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace pipewright
