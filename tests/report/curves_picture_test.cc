// Draws metrics files as curves, and writes them as a table.
#include "report/curves_picture.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <regex>

#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

Metrics Read(const std::string& text) {
  const std::string path = TempPath("metrics.jsonl");
  std::ofstream(path) << text;
  return ReadMetrics(path);
}

std::string MetricsError(const std::string& text) {
  const std::string error = ErrorOf([&] { Read(text); });
  return error.empty() ? "" : error.substr(TempPath("metrics.jsonl").size());
}

TEST(ReadMetrics, NamesNestedNumbersAndOmitsLossesOfMicrobatches) {
  using Curve = std::vector<std::pair<double, double>>;
  const Metrics metrics = Read(
      "{\"step\": 1, \"loss\": 0.5, \"losses\": [1, 2], \"memory\": [10, 20], \"done\": true}\n\n"
      "{\"step\": 4, \"loss\": 0.25, \"validation\": {\"loss\": 3, \"name\": \"x\"}}\n");
  EXPECT_EQ(metrics.curves, (std::map<std::string, Curve>{{"done", {{1, 1}}},
                                                          {"loss", {{1, 0.5}, {4, 0.25}}},
                                                          {"memory.0", {{1, 10}}},
                                                          {"memory.1", {{1, 20}}},
                                                          {"validation.loss", {{4, 3}}}}));
  EXPECT_FALSE(metrics.unfinished);
  EXPECT_EQ(CurvesCsv(metrics),
            "step,done,loss,memory.0,memory.1,validation.loss\n"
            "1,1.0,0.5,10.0,20.0,\n"
            "4,,0.25,,,3.0\n");
}

TEST(ReadMetrics, ForgivesOnlyTheLastLine) {
  const Metrics metrics = Read("{\"step\": 1, \"loss\": 2}\n{\"step\": 2, \"lo");
  EXPECT_TRUE(metrics.unfinished);
  EXPECT_EQ(metrics.curves.at("loss").size(), 1u);
  EXPECT_TRUE(MetricsError("{\"step\": 1, \"lo\n{\"step\": 2, \"loss\": 1}\n").starts_with(":1:"));
  EXPECT_TRUE(MetricsError("{\"step\": 1, \"loss\": 2}\n{\"loss\": 1}\n")
                  .starts_with(":2: not a line of metrics: it has no \"step\""));
  EXPECT_TRUE(MetricsError("").starts_with(": no metrics in it"));
}

TEST(CurvesCsv, KeepsEveryBit) {
  const double awkward = 0.1 + 0.2, small = std::numeric_limits<double>::denorm_min();
  Metrics run;
  run.curves["loss"] = {{3, awkward}, {1e15, small}};
  const std::string text = CurvesCsv(run);
  const size_t first = text.find("3,") + 2, second = text.find("1000000000000000,") + 17;
  EXPECT_EQ(std::strtod(text.c_str() + first, nullptr), awkward);
  EXPECT_EQ(std::strtod(text.c_str() + second, nullptr), small);
}

std::vector<std::string> Paths(const std::string& svg, const std::string& kind) {
  std::vector<std::string> found;
  const std::regex path("<path d=\"([^\"]*)\" class=\"" + kind + "\">");
  for (std::sregex_iterator i(svg.begin(), svg.end(), path), end; i != end; ++i)
    found.push_back((*i)[1]);
  return found;
}

// The panel is 620 by 180 pixels and begins at (70, 60) below one line of the legend.
TEST(CurvesSvg, DrawsValidationDashedOnTheSameScale) {
  Metrics run;
  run.path = "a<b";
  run.curves["loss"] = {{0, 4}, {5, 2}, {10, 0}};
  run.curves["validation.loss"] = {{10, 1}};
  run.curves["memory.0"] = {{0, 1}};  // people do not look at it
  const std::string svg = CurvesSvg({run});
  EXPECT_EQ(Paths(svg, "c c0"), std::vector<std::string>{"M70 60L380 150L690 240"});
  EXPECT_EQ(Paths(svg, "c c0 dash"), std::vector<std::string>{"M690 195"});
  EXPECT_NE(svg.find("a&lt;b: validation.loss"), std::string::npos);
  EXPECT_EQ(svg.find("memory"), std::string::npos);
  EXPECT_EQ(Paths(CurvesSvg({}), "c c0").size(), 0u);
}

// A spike of one step among 100000 stays in the picture, with at most 1200 points.
TEST(CurvesSvg, KeepsPeaksOfLongRuns) {
  Metrics run;
  for (int i = 0; i < 100000; ++i)
    run.curves["loss"].push_back({i, i == 54321 ? 100.0 : i == 77777 ? -100.0 : i % 2});
  const std::string path = Paths(CurvesSvg({run}), "c c0").at(0);
  EXPECT_NE(path.find(" 60L"), std::string::npos);
  EXPECT_NE(path.find(" 240L"), std::string::npos);
  EXPECT_EQ(std::count(path.begin(), path.end(), 'L'), 1199);
}

}  // namespace
}  // namespace pipewright
