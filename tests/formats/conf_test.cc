#include "formats/conf.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/files/read_file.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {

static const std::string kPublished = TEST_DIR "/data/pipedream/runtime";

static std::string ConfError(const std::string& text, int modules = -1, int launched = -1,
                             const std::vector<std::pair<int, int>>& edges = {}) {
  const std::string path = TempPath("conf.json");
  WriteFile(path, text);
  const std::string error = ErrorOf([&] {
    Conf conf = ReadConf(path);
    if (modules >= 0) CheckConf(conf, modules, launched, edges, path);
  });
  return error.empty() ? "" : error.substr(path.size() - std::string("conf.json").size());
}

static std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

TEST(Conf, ReadsEveryPublishedOneAndRefusesTheBrokenOne) {
  int read = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(kPublished)) {
    if (!file.is_regular_file()) continue;
    std::string path = file.path().string();
    if (path.find("vgg16/gpus=4/mp_conf.json") != std::string::npos) {
      try {
        ReadConf(path);
        FAIL() << "it is not JSON";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("mp_conf.json:3:37: not JSON"), std::string::npos)
            << e.what();
      }
      continue;
    }
    Conf conf = ReadConf(path);
    int modules = static_cast<int>(conf.module_to_stage.size()) - 1;
    Conf checked = conf;
    std::vector<std::pair<int, int>> chain;
    for (int m = 1; m < modules; ++m) chain.push_back({m - 1, m});
    CheckConf(checked, modules, -1, chain, path);
    EXPECT_TRUE(checked.has_loss_entry);
    EXPECT_EQ(checked.module_to_stage.size(), static_cast<size_t>(modules));
    EXPECT_EQ(ParseConf(WriteConf(checked), path), conf) << path;
    ++read;
  }
  EXPECT_GT(read, 25);
}

TEST(Conf, ReadsAndWritesDevices) {
  const std::string text =
      R"({"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0], "1": [1]},
    "rank_to_device_map": {"0": "cuda:1", "1": "cpu"}})";
  const Conf conf = ParseConf(text, "conf.json");
  EXPECT_EQ(conf.devices, (std::vector<std::string>{"cuda:1", "cpu"}));
  EXPECT_EQ(ParseConf(WriteConf(conf), "conf.json"), conf);
}

TEST(Conf, ReadsRanksAndDepths) {
  Conf conf = ReadConf(kPublished + "/image_classification/models/vgg16/gpus=4/hybrid_conf.json");
  EXPECT_EQ(conf.module_to_stage, (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(conf.stage_to_ranks, (std::vector<std::vector<int>>{{0, 1, 2}, {3}}));
  EXPECT_EQ(conf.stage_to_depth, (std::vector<int>{1, 0}));
}

TEST(Conf, TheLossEntryMayBeAbsentAndARankMayHoldSeveralStages) {
  std::string text =
      R"({"module_to_stage_map": [0, 1, 2], "stage_to_rank_map": {"0": [0], "1": [1], "2": [0]}})";
  EXPECT_EQ(ConfError(text, 3, 2, {{0, 1}, {1, 2}}), "");
  Conf conf = ParseConf(text, "conf.json");
  CheckConf(conf, 3, 2, {}, "conf.json");
  EXPECT_FALSE(conf.has_loss_entry);
  EXPECT_EQ(ParseConf(WriteConf(conf), "conf.json"), conf);
}

TEST(Conf, AConvexConfNeedNotBeConsecutive) {
  // 0 feeds 1 and 2, both feed 3: stages {0, 2} and {1, 3}.
  EXPECT_EQ(ConfError(R"({"module_to_stage_map": [0, 1, 0, 1],
                        "stage_to_rank_map": {"0": [0, 1], "1": [2, 3, 4]}})",
                      4, 5, {{0, 1}, {0, 2}, {1, 3}, {2, 3}}),
            "");
}

TEST(Conf, RefusesBrokenOnesWithReasonAndLine) {
  struct Case {
    const char* modules;
    const char* ranks;
    const char* error;
  };
  Case cases[] = {
      {"[0, 1, 0]", R"({"0": [0]})", "conf.json:2:32: module 1 is in stage 1, which has no ranks"},
      {"[0, 0]", R"({"0": [0], "1": [1]})", "conf.json:3:42: stage 1 has no module"},
      {"[0, 1, 1]", R"({"0": [0], "1": []})", "conf.json:3:42: stage 1 has no ranks"},
      {"[0, 1]", R"({"0": [0, 0], "1": [1]})", "conf.json:3:36: rank 0 appears twice in stage 0"},
      {"[0, 1]", R"({"0": [0], "1": [2]})", "conf.json:3:26: ranks go up to 2 but rank 1 has no"},
      {"[0, 1]", R"({"0": [0], "1": [-1]})", "conf.json:3:43: a rank is expected (0, 1, 2, ...)"},
      {"[0, 1]", R"({"0": [0], "1": [1.5]})", "conf.json:3:43: a rank is expected"},
      {"[0, 1]", R"({"0": [0], "1": 1})", "conf.json:3:42: a list of ranks is expected"},
      {"[0, 1]", R"({"0": [0], "2": [1]})", "conf.json:3:42: stage_to_rank_map has stage 2 but no"},
      {"[0, 1]", R"({"0": [0], "x": [1]})", "conf.json:3:42: \"x\" is not the number of a stage"},
      {"[0, 1]", R"({"0": [0], "0": [1]})", "conf.json:3:37: the key \"0\" appears twice"},
      {"[0, \"a\"]", R"({"0": [0], "1": [1]})", "conf.json:2:32: a stage is expected"},
      {"[]", R"({"0": [0]})", "conf.json:2:28: a list with the stage of each module"},
      {"[0, 1]", "{}", "conf.json:3:26: stage_to_rank_map is empty"},
      {"[0, 1]", R"({"0": [0], "1": [1]}, "stages": 2)", "conf.json:3:58: unknown key \"stages\""},
      {"[0, 1]", R"({"0": [0], "1": [1]}, "rank_to_device_map": {"0": "cpu"})",
       "conf.json:3:70: rank_to_device_map has 1 rank, but stage_to_rank_map has 2"},
      {"[0, 1]", R"({"0": [0], "1": [1]}, "rank_to_device_map": {"0": "cpu", "1": 1})",
       "conf.json:3:88: a device is expected, \"cpu\" or \"cuda:0\", not 1"},
      {"[0, 1]", R"({"0": [0], "1": [1]}, "rank_to_device_map": {"0": "cpu", "a": "cpu"})",
       "conf.json:3:88: \"a\" is not the number of a rank"},
      {"[0, 1]", R"({"0": [0], "1": [1]}, "stage_to_depth_map": {"0": 1})",
       "conf.json:3:70: stage_to_depth_map has 1 stage, but stage_to_rank_map has 2"},
  };
  for (const Case& c : cases) {
    std::string text = std::string("{\n    \"module_to_stage_map\": ") + c.modules +
                       ",\n    \"stage_to_rank_map\": " + c.ranks + "\n}\n";
    EXPECT_EQ(ConfError(text).substr(0, std::string(c.error).size()), c.error) << text;
  }
}

TEST(Conf, AJobIsNoConf) {
  const std::string error = ConfError(R"({"data": {"tensors": "x.safetensors"}, "loss": "mse"})");
  EXPECT_EQ(error.substr(0, error.find('\n')), "conf.json:1:1: is a job, not a conf");
}

TEST(Conf, TheStageOfTheLossNeedsNoRanks) {
  for (const char* ranks : {R"({"0": [0], "1": [1]})", R"({"0": [0], "1": [1], "2": []})"}) {
    std::string text =
        std::string(R"({"module_to_stage_map": [0, 1, 2], "stage_to_rank_map": )") + ranks + "}";
    EXPECT_EQ(ConfError(text, 2, 2), "");
    EXPECT_NE(ConfError(text, 3, 2).find("module 2 is in stage 2, which has no ranks"),
              std::string::npos);
  }
}

TEST(Conf, RefusesWhatDoesNotFitTheModelOrTheJob) {
  std::string text = R"({"module_to_stage_map": [0, 1, 0],
"stage_to_rank_map": {"0": [0], "1": [1]}})";
  std::vector<std::pair<int, int>> chain = {{0, 1}, {1, 2}};
  EXPECT_EQ(ConfError(text, 5).substr(0, 45), "conf.json:1:25: module_to_stage_map has 3 ent");
  EXPECT_EQ(ConfError(text, 1).substr(0, 45), "conf.json:1:25: module_to_stage_map has 3 ent");
  EXPECT_EQ(FirstLine(ConfError(text, 3, 3)),
            "conf.json:2:22: the conf needs 2 ranks, but 3 were launched");
  EXPECT_EQ(FirstLine(ConfError(text, 3, 1)),
            "conf.json:2:22: the conf needs 2 ranks, but 1 was launched");
  EXPECT_EQ(ConfError(text, 3, 2, chain),
            "conf.json:1:32: module 1 (stage 1) feeds module 2 (stage 0): values would leave a "
            "stage and come back to it (it is not convex)\n"
            "  a stage may only use values of its own modules and of earlier stages");
  EXPECT_NE(ConfError(text, 3, 2, {{1, 2}}).find("numbered against the flow"), std::string::npos);
  // The entry of the loss holds no module.
  EXPECT_EQ(ConfError(R"({"module_to_stage_map": [0, 0, 1],
"stage_to_rank_map": {"0": [0], "1": [1]}})",
                      2)
                .substr(0, 64),
            "conf.json:2:38: stage 1 has no module besides the loss\n  give it");
}

static std::vector<std::string> MistakesOf(const std::string& text, int modules, int launched,
                                           const std::vector<std::pair<int, int>>& edges) {
  const std::string path = TempPath("conf.json");
  WriteFile(path, text);
  std::vector<std::string> texts;
  std::vector<Error> mistakes;
  ReadConf(path, modules, launched, edges, mistakes);
  for (const Error& mistake : mistakes) {
    const std::string what = mistake.what();
    texts.push_back(what.substr(path.size(), what.find('\n') - path.size()));
  }
  return texts;
}

TEST(Conf, FindsEveryMistake) {
  EXPECT_EQ(
      MistakesOf(R"({
  "module_to_stage_map": [0, "x", 5, 1],
  "stage_to_rank_map": {"0": [0, 0], "1": [-1]},
  "stage_to_depth_map": {"0": 1, "1": "y"},
  "offload": {"stages": [7], "memory": "1 parsec"},
  "stages": 2
})",
                 4, 2, {}),
      (std::vector<std::string>{
          ":6:13: unknown key \"stages\"", ":3:34: rank 0 appears twice in stage 0",
          ":3:44: a rank is expected (0, 1, 2, ...), not -1",
          ":2:30: a stage is expected (0, 1, 2, ...), not \"x\"",
          ":2:35: module 2 is in stage 5, which has no ranks in stage_to_rank_map",
          ":4:39: a depth is expected (0, 1, 2, ...), not \"y\"", ":5:26: there is no stage 7",
          ": offload.memory: the size \"1 parsec\" has an unknown unit"}));
  // Every value that flows backward, and the ranks that were launched.
  EXPECT_EQ(
      MistakesOf(R"({"module_to_stage_map": [1, 0, 0], "stage_to_rank_map": {"0": [0], "1": [1]}})",
                 3, 3, {{0, 1}, {0, 2}, {1, 2}}),
      (std::vector<std::string>{
          ":1:57: the conf needs 2 ranks, but 3 were launched",
          ":1:29: module 0 (stage 1) feeds module 1 (stage 0): stages are numbered against the "
          "flow of values",
          ":1:32: module 0 (stage 1) feeds module 2 (stage 0): stages are numbered against the "
          "flow of values"}));
  // A number that is none hides only what depends on it.
  EXPECT_EQ(
      MistakesOf(R"({"module_to_stage_map": [0, 9], "stage_to_rank_map": {"a": [0], "1": [1]}})", 2,
                 2, {}),
      (std::vector<std::string>{":1:60: \"a\" is not the number of a stage"}));
  EXPECT_TRUE(
      MistakesOf(R"({"module_to_stage_map": [0, 1], "stage_to_rank_map": {"0": [0], "1": [1]}})", 2,
                 2, {{0, 1}})
          .empty());
}

TEST(Conf, GroupsModulesEvenly) {
  for (int modules = 1; modules < 20; ++modules)
    for (int ranks = 1; ranks <= modules; ++ranks) {
      Conf conf = GroupModules(modules, ranks);
      std::vector<int> size(static_cast<size_t>(ranks), 0);
      for (int stage : conf.module_to_stage) ++size[static_cast<size_t>(stage)];
      auto [least, most] = std::minmax_element(size.begin(), size.end());
      EXPECT_GE(*least, 1);
      EXPECT_LE(*most - *least, 1);
      EXPECT_TRUE(std::is_sorted(conf.module_to_stage.begin(), conf.module_to_stage.end()));
    }
  EXPECT_THROW(GroupModules(2, 3), Error);
}

}  // namespace pipewright
