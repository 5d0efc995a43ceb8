// Files of machines: what they mean, and mistakes in them.
#include "tune/job/machines.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "plan/tune/cuts.h"
#include "plan/tune/predict.h"
#include "tests/error_text.h"
#include "tests/plan/tune/chain.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

std::string File(const std::string& text) {
  std::ofstream(TempPath("machines.json")) << text;
  return TempPath("machines.json");
}

constexpr char kTwoKinds[] =
    R"({"devices": {"fast": {"speed": 4, "memory": 1000}, "slow": {"speed": 2}},
        "machines": [{"device": "fast", "devices": 2, "link": {"bandwidth": 2e6}},
                     {"device": "slow", "count": 3}],
        "link": {"latency": 0.5, "bandwidth": 1e6}})";

TEST(TuneMachines, TheFastestFirst) {
  const TuneMachines machines = ReadMachines(
      File(R"({"devices": {"a": {"speed": 2}, "b": {"speed": 3, "memory": 9}, "c": {"speed": 2}},
               "machines": [{"device": "a", "devices": 2}, {"device": "c", "link": {"bandwidth": 7}},
                            {"device": "b", "link": {"bandwidth": 5}}],
               "link": {"bandwidth": 1}})"),
      1);
  EXPECT_EQ(machines.speeds, (std::vector<double>{3, 2, 2, 2}));
  EXPECT_EQ(machines.memory, (std::vector<double>{9, kNoLimit, kNoLimit, kNoLimit}));
  EXPECT_EQ(machines.machine, (std::vector<int>{0, 1, 1, 2}));
  EXPECT_EQ(machines.within[0].bytes_per_second, 5);
  EXPECT_EQ(machines.within[1].bytes_per_second, 1);
  EXPECT_EQ(machines.within[2].bytes_per_second, 7);
  EXPECT_EQ(machines.order, (std::vector<size_t>{2, 0, 1}));
}

TEST(TuneMachines, EqualSpeedsInTheOrderOfTheFile) {
  const TuneMachines machines = ReadMachines(File(kTwoKinds), 4);
  EXPECT_EQ(machines.speeds, (std::vector<double>{4, 4, 2, 2, 2})) << "more than ranks";
  EXPECT_EQ(machines.memory, (std::vector<double>{1000, 1000, kNoLimit, kNoLimit, kNoLimit}));
  EXPECT_EQ(machines.machine, (std::vector<int>{0, 0, 1, 2, 3}));
  EXPECT_EQ(machines.within[0].bytes_per_second, 2e6);
  EXPECT_EQ(machines.within[1].latency, 0.5);
  EXPECT_EQ(machines.between.bytes_per_second, 1e6);
}

// One microbatch of one sample through four modules of 1.1 ms, one on each rank: forward and
// backward, and three transfers of 10 kB each way, the first within a machine.
TEST(TuneMachines, ScaleTimesAndReplaceLinks) {
  TuneProblem problem = ProblemOf(std::vector<double>(4, 1e-3), 1);
  problem.machines = ReadMachines(File(kTwoKinds), 4);
  const TuneProfile profile = {4, ProfileOf(std::vector<double>(4, 1e-3), 1)};
  const TuneCandidate found = Predict(problem, profile, GroupModules(4, 4), "gpipe", 1, {});
  const double compute = 3 * 1.1e-3 * (1 / 4. + 1 / 4. + 1 / 2. + 1 / 2.),
               links = 2 * (1e4 / 2e6 + 2 * (0.5 + 1e4 / 1e6));
  EXPECT_NEAR(found.step, compute + links, 1e-9);
  EXPECT_EQ(RankLimit(problem, 1), 1000);
  EXPECT_FALSE(Fits(problem, found));
}

// A forward and a backward that run as one take this share of their time.
TEST(TuneMachines, Overlap) {
  const auto step = [](const std::string& overlap) {
    TuneProblem problem = ProblemOf(std::vector<double>(2, 1e-3), 8);
    problem.machines = ReadMachines(
        File(R"({"devices": {"d": {"speed": 2)" + overlap + R"(}}, "link": {"bandwidth": 1e15},
                 "machines": [{"device": "d", "devices": 2}]})"),
        2);
    Conf conf = GroupModules(2, 2);
    conf.stage_to_ranks = {{0, 1}, {1, 0}};
    return Predict(problem, {2, ProfileOf(std::vector<double>(2, 1e-3), 1)}, conf, "dualpipe", 8,
                   {})
        .step;
  };
  EXPECT_EQ(step(R"(, "overlap": 1)"), step(""));
  const double pairs = 8 * 3.3e-3 / 2;  // of a rank: forwards of 1.1 ms and backwards of 2.2 ms
  EXPECT_GE(step("") * (1 + 1e-9), pairs);
  const double gain = step("") - step(R"(, "overlap": 0.6)");
  EXPECT_GT(gain, 0.4 * pairs / 2) << "most are run as one";
  EXPECT_LE(gain, 0.4 * pairs * (1 + 1e-9));
}

// Costs of links do not grow with the square of the ranks.
TEST(TuneMachines, MostRanks) {
  TuneProblem problem = ProblemOf({1e-3}, 1);
  problem.machines =
      ReadMachines(File(R"({"devices": {"d": {"speed": 1}}, "link": {"bandwidth": 1e6},
               "machines": [{"device": "d", "devices": 32768, "count": 2,
                             "link": {"bandwidth": 2e6}}]})"),
                   65536);
  Conf conf = GroupModules(1, 1);
  for (int rank = 1; rank < 65536; ++rank) conf.stage_to_ranks[0].push_back(rank);
  const Costs costs = CostsOfConf(problem, problem.profiles[0], conf);
  EXPECT_NEAR(TransferTime(costs, 0, 32767, 2e6), 1e6, 1e-3);  // a second
  EXPECT_NEAR(TransferTime(costs, 0, 32768, 2e6), 2e6, 1e-3);
  EXPECT_LT(costs.links.size(), 10u);
}

// A slow link makes another cut the best, though its stages are less even.
TEST(TuneMachines, CutsForTheirLinks) {
  TuneProblem problem = ProblemOf({2e-3, 1e-3, 1e-3}, 1);
  Profile profile = ProfileOf({2e-3, 1e-3, 1e-3}, 1);
  profile.values[1].bytes = 1e6;  // between the stages of the even cut
  problem.profiles = {{2, profile}};
  const auto cut = [&](const char* bandwidth, const std::string& machine) {
    problem.machines = ReadMachines(
        File(R"({"devices": {"d": {"speed": 1}}, "link": {"bandwidth": )" + std::string(bandwidth) +
             R"(}, "machines": [{"device": "d", )" + machine + "}]}"),
        2);
    return CutInto(problem, {&problem.profiles[0], 2, 0, false})->module_to_stage;
  };
  EXPECT_EQ(cut("1e12", R"("count": 2)"), (std::vector<int>{0, 1, 1}));
  EXPECT_EQ(cut("1e8", R"("count": 2)"), (std::vector<int>{0, 0, 1}));
  EXPECT_EQ(cut("1e8", R"("devices": 2, "link": {"bandwidth": 1e12})"),
            (std::vector<int>{0, 1, 1}));
}

TEST(TuneMachines, TheExample) {
  const TuneMachines machines =
      ReadMachines(std::string(TEST_DIR) + "/../configs/machines/eight_machines.json", 64);
  EXPECT_EQ(machines.within.size(), 8u);
  EXPECT_EQ(machines.machine.back(), 7);
  EXPECT_EQ(machines.speeds, std::vector<double>(64, 100));
}

TEST(TuneMachines, Mistakes) {
  const auto said = [](const std::string& text, int ranks = 1) {
    const std::string path = File(text);
    return ErrorOf([&] { ReadMachines(path, ranks); }).substr(path.size());
  };
  EXPECT_EQ(said(kTwoKinds, 9),
            ": has 5 devices, fewer than --ranks 9\n  describe more machines, or give fewer ranks");
  const std::string devices = R"({"devices": {"d": {"speed": 1}}, "link": {"bandwidth": 1}, )";
  EXPECT_EQ(said(R"({"devices": {"d": {"speed": 0}}})"),
            ": devices.d.speed: a number above 0 is expected");
  EXPECT_EQ(said(R"({"devices": {"d": {"speed": 1, "overlap": 1.5}}})"),
            ": devices.d.overlap: a share of at most 1 is expected, not 1.5");
  EXPECT_EQ(said(devices + R"("machines": [{"device": "e"}]})"),
            ": machines[0].device: \"e\" is not among \"devices\"");
  EXPECT_EQ(said(devices + R"("machines": [{"device": "d", "number": 2}]})"),
            ": machines[0]: unknown key \"number\"\n  the keys are device, devices, link, count");
  EXPECT_EQ(said(R"({"devices": {}})"), ": \"link\" is missing");
}

}  // namespace
}  // namespace pipewright
