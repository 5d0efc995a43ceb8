#include "formats/json_differences.h"

#include <gtest/gtest.h>

#include "formats/job_changes.h"

namespace pipewright {

namespace {

using Strings = std::vector<std::string>;

// Returns "where: first | second" for each difference.
Strings Compare(const std::string& first, const std::string& second,
                const std::string& where = "") {
  std::vector<Difference> list;
  CompareJson(ParseJson(first, "first"), ParseJson(second, "second"), where, list);
  Strings lines;
  for (const Difference& d : list) lines.push_back(d.where + ": " + d.first + " | " + d.second);
  return lines;
}

const std::string kLong(70, 'x');

}  // namespace

TEST(JsonDifferences, ValuesAreNamedByTheirKeys) {
  EXPECT_EQ(Compare(R"({"a": {"b": 1, "c": "x"}})", R"({"a": {"b": 2, "c": "y"}})"),
            (Strings{"a.b: 1 | 2", R"(a.c: "x" | "y")"}));
  EXPECT_EQ(Compare("1", "\"1\"", "part"), (Strings{"part: 1 | \"1\""}));
  EXPECT_EQ(Compare(R"({"a": 1})", R"({"a": {"b": 1}})", "doc"),
            (Strings{R"(doc.a: 1 | {"b":1})"}));
}

TEST(JsonDifferences, AbsentValuesAreEmpty) {
  EXPECT_EQ(Compare(R"({"a": 1, "b": null})", R"({"b": null, "c": ""})"),
            (Strings{"a: 1 | ", "c:  | \"\""}));
}

TEST(JsonDifferences, EqualDocumentsHaveNone) {
  EXPECT_EQ(Compare("[1, {\"a\": []}]", "[1, {\"a\": []}]"), Strings());
  EXPECT_EQ(Compare(R"({"a": 1, "b": 2})", R"({"b": 2, "a": 1})"), Strings());
}

TEST(JsonDifferences, ShortListsAreShownWhole) {
  EXPECT_EQ(Compare(R"({"a": [1, 2]})", R"({"a": [1, 3, 4]})"), (Strings{"a: [1,2] | [1,3,4]"}));
}

TEST(JsonDifferences, LongListsAreMatchedByNumberOrByName) {
  const std::string q = "\"" + kLong + "\"";
  EXPECT_EQ(Compare("[" + q + ", 1, 2]", "[" + q + ", 1, 3, 4]"),
            (Strings{"2: 2 | 3", "3:  | 4"}));
  const std::string a = R"({"name": "a", "v": )" + q + "}", b = R"({"name": "b", "v": 1})",
                    c = R"({"name": "b", "v": 2})";
  EXPECT_EQ(Compare("[" + a + "," + b + "]", "[" + c + "," + a + "]", "m"),
            (Strings{"m.b.v: 1 | 2"}));
  EXPECT_EQ(Compare("[" + a + "," + b + "]", "[" + b + "," + a + "]", "m"),
            (Strings{"m: in another order | in another order"}));
}

TEST(JobChanges, NamesWhatLossesDependOn) {
  EXPECT_EQ(ChangedJobKeys(R"({"loss": "mse", "optimizer": {"lr": 0.1}})",
                           R"({"loss": "l1", "optimizer": {"lr": 0.1, "momentum": 0.5}})"),
            (Strings{R"("loss" from "mse" to "l1")",
                     R"("optimizer.momentum" from none to 0.5)"}));
  EXPECT_EQ(ChangedJobKeys("{}", R"({"tf32": true})"), (Strings{R"("tf32" from none to true)"}));
  const std::string rate = R"({"optimizer": {"lr_schedule": {"type": "cosine"}}, "steps": )";
  EXPECT_EQ(ChangedJobKeys(rate + "100}", rate + "200}"), (Strings{R"("steps" from 100 to 200)"}));
  const std::string warm = R"({"optimizer": {"lr_schedule": {"warmup": 9}}, "steps": )";
  EXPECT_EQ(ChangedJobKeys(warm + "100}", warm + "200}"), Strings());
  const std::string own =
      R"({"optimizer": {"lr_schedule": {"type": "cosine", "steps": 9}}, "steps": )";
  EXPECT_EQ(ChangedJobKeys(own + "100}", own + "200}"), Strings());
  EXPECT_EQ(ChangedJobKeys(R"({"freeze": ["a"]})", "{}"),
            (Strings{R"("freeze" from ["a"] to none)"}));
}

TEST(JobChanges, TheRestDoesNotCount) {
  EXPECT_EQ(ChangedJobKeys(R"({"steps": 1, "schedule": "1f1b", "save": "a", "loss": "mse"})",
                           R"({"loss": "mse", "steps": 2, "schedule": "gpipe", "log_every": 3})"),
            Strings());
}

TEST(JobChanges, LongValuesAreLeftOut) {
  const std::string job = R"({"loss": ")";
  EXPECT_EQ(ChangedJobKeys(job + kLong + "\"}", job + kLong + "y\"}"), (Strings{"\"loss\""}));
}

}  // namespace pipewright
