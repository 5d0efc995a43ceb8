// Views a package made by hand: what is computed, and its text, JSON and picture.
#include "report/view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "report/cut_picture.h"
#include "report/inspect.h"
#include "report/page.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

// Modules 0, 1 and 2 in stages 0, 0 and 1 on ranks {0}, {0} and {1, 2}; module 0 feeds both others.
PackageView Example() {
  PackageView view;
  view.package = "a<b.pkg";
  view.manifest.source = "model.pt2", view.manifest.version = "9.9";
  auto value = [&](const std::string& name, std::vector<std::string> shape, int producer,
                   std::vector<int> consumers) {
    ValueInfo info;
    info.name = name, info.dtype = "float32", info.shape = shape, info.gradient = producer >= 0;
    info.producer = producer, info.consumers = consumers;
    view.manifest.values.push_back(info);
  };
  value("tokens", {"s0", "8"}, -1, {0});
  value("hidden", {"s0", "64"}, 0, {1, 2});
  value("mixed", {"2", "3"}, 1, {2});
  value("near", {}, 0, {1});
  for (int m = 0; m < 3; ++m) {
    ModuleInfo module;
    module.name = "module" + std::to_string(m);
    module.covers = {"layer." + std::to_string(m)};
    WeightInfo weight, count;
    weight.name = "weight", weight.dtype = "float32", weight.shape = {m + 1, 5};
    count.name = "count", count.kind = WeightKind::kBuffer, count.dtype = "int64";
    module.held = {weight, count};
    view.manifest.modules.push_back(module);
    view.edited.push_back(m == 1);
  }
  view.manifest.modules[1].inputs = {1, 3}, view.manifest.modules[1].outputs = {2};
  view.conf_path = "mp.json";
  view.conf.emplace();
  view.conf->module_to_stage = {0, 0, 1};
  view.conf->stage_to_ranks = {{0}, {1, 2}};
  return view;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(View, CountsStagesRanksAndBytes) {
  PackageView view = Example();
  EXPECT_EQ(StageOf(view, 2), 1);
  EXPECT_EQ(RanksOf(view, 2), (std::vector<int>{1, 2}));
  EXPECT_EQ(CountStages(view), 2);
  EXPECT_EQ(CountRanks(view), 3);
  EXPECT_EQ(ValueBytes(view, 1), std::nullopt) << "s0 is not known";
  EXPECT_EQ(ValueBytes(view, 2), 2 * 3 * 4);
  EXPECT_EQ(ValueBytes(view, 3), 4) << "a scalar tensor";
  EXPECT_EQ(ValueShapeText(view.manifest.values[1]), "[s0, 64]");
  EXPECT_EQ(ValueShapeText(view.manifest.values[3]), "[]");
  const ModuleSize size = SizeOf(view.manifest.modules[2]);
  EXPECT_EQ(size.parameters, 15) << "buffers are no parameters";
  EXPECT_EQ(size.bytes, 15 * 4 + 8);
  EXPECT_FALSE(TimeOf(view, 0));
  view.profile.emplace();
  for (double seconds : {0.5, 0.25}) {
    ProfileNode node;
    node.module = 1, node.forward.median = seconds, node.backward.median = 2 * seconds;
    view.profile->nodes.push_back(node);
  }
  view.profile->values.push_back({"hidden", 0, {1}, 4096, true, true});
  EXPECT_EQ(TimeOf(view, 1)->forward, 0.75);
  EXPECT_EQ(TimeOf(view, 1)->backward, 1.5);
  EXPECT_EQ(ValueBytes(view, 1), 4096);
}

TEST(View, FindsValuesThatCrossBetweenStages) {
  PackageView view = Example();
  const std::vector<Crossing> crossings = CrossingsOf(view);
  ASSERT_EQ(crossings.size(), 2u);
  for (size_t i : {0u, 1u}) {
    EXPECT_EQ(crossings[i].value, static_cast<int>(i) + 1);
    EXPECT_EQ(crossings[i].from, 0);
    EXPECT_EQ(crossings[i].to, std::vector<int>{1});
  }
  view.conf.reset();
  EXPECT_TRUE(CrossingsOf(view).empty());
  EXPECT_EQ(StageOf(view, 0), -1);
  EXPECT_TRUE(RanksOf(view, 0).empty());
  EXPECT_EQ(CountRanks(view), 0);
}

TEST(Inspect, FindsNamesOfEveryKind) {
  const PackageView view = Example();
  EXPECT_EQ(FindInPackage(view, "no such name").size(), 0u);
  std::vector<std::string> kinds;
  for (const char* word : {"module2", "layer.1", "token", "weight", "count"})
    for (const FoundName& found : FindInPackage(view, word))
      kinds.push_back(found.kind + " " + found.name + " " + std::to_string(found.module));
  std::sort(kinds.begin(), kinds.end());
  EXPECT_EQ(kinds, (std::vector<std::string>{
                       "buffer count 0", "buffer count 1", "buffer count 2", "module module2 2",
                       "parameter weight 0", "parameter weight 1", "parameter weight 2",
                       "submodule layer.1 1", "value tokens -1"}));
}

TEST(Inspect, DescribesThePackage) {
  const PackageView view = Example();
  const std::string text = PackageText(view);
  EXPECT_TRUE(text.starts_with("a<b.pkg: model.pt2, compiled by pipewright 9.9\n"
                               "3 modules, 30 parameters, 144 B\n"
                               "mp.json: 2 stages, 3 ranks\n"))
      << text;
  EXPECT_EQ(Count(text, " (edited)"), 1u);
  const Json json = PackageJson(view);
  EXPECT_EQ(json["stages"][0]["parameters"], 5 + 10);
  EXPECT_EQ(json["ranks"].size(), 3u);
  EXPECT_EQ(json["ranks"][2]["bytes"], 15 * 4 + 8);
  const Json module = ModuleJson(view, 1);
  EXPECT_EQ(module["inputs"][0]["bytes"], Json());
  EXPECT_EQ(module["outputs"][0]["bytes"], 24);
  EXPECT_EQ(module["edited"], true);
  EXPECT_EQ(module["forward_seconds"], Json());
}

// Modules are 76 pixels apart from y = 44. Both values for module 2 are red; the arrow that skips
// module 1 goes around on the right.
TEST(CutSvg, DrawsModulesAndArrows) {
  const std::string svg = CutSvg(Example());
  for (int m = 0; m < 3; ++m)
    EXPECT_EQ(Count(svg, "<rect x=\"20\" y=\"" + std::to_string(44 + 76 * m) +
                             "\" width=\"440\" height=\"44\" class=\"s" +
                             std::to_string(m == 2) + "\">"),
              1u);
  EXPECT_EQ(Count(svg, "class=\"edge\""), 1u);
  EXPECT_EQ(Count(svg, "class=\"cross\""), 1u);
  EXPECT_EQ(Count(svg, "M460 80L476 80L476 204L460 204"), 1u);
  EXPECT_EQ(Count(svg, "class=\"cross skip\""), 1u);
  EXPECT_EQ(Count(svg, "<title>hidden [s0, 64]\nnear [] 4 B</title>"), 1u);
  EXPECT_EQ(Count(svg, "a<b"), 0u);
  EXPECT_GE(Count(svg, "a&lt;b.pkg"), 1u);
  EXPECT_EQ(Count(CutSvg(PackageView()), "<rect"), 0u);
}

// Names are cut between characters: no half of an "ä" may remain.
TEST(CutSvg, ShortensNamesWithoutBreakingCharacters) {
  PackageView view;
  view.package = "x";
  for (int i = 0; i < 60; ++i) view.package += "ä";
  const std::string svg = CutSvg(view);
  EXPECT_EQ(Count(svg, "\xEF\xBF\xBD"), 0u);
  EXPECT_EQ(Count(svg, "ä…</text>"), 1u);
}

TEST(Page, RefusesOutputsThatWouldDestroyFiles) {
  const std::string page = TempPath("page.html"), missing = TempPath("no/such/page.html");
  std::filesystem::remove(page);  // of a run before, with --gtest_repeat
  EXPECT_NO_THROW(CheckPageOutput(page, {TempPath("other")}, false));
  EXPECT_THROW(CheckPageOutput(missing, {}, true), Error);
  std::ofstream(page) << "";
  EXPECT_NO_THROW(CheckPageOutput(page, {}, false)) << "nothing is lost with an empty file";
  std::ofstream(page) << "notes";
  EXPECT_THROW(CheckPageOutput(page, {}, false), Error);
  EXPECT_NO_THROW(CheckPageOutput(page, {}, true));
  EXPECT_THROW(CheckPageOutput(page, {page}, true), Error);
}

}  // namespace
}  // namespace pipewright
