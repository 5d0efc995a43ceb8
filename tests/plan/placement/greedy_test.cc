#include "plan/placement/greedy.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/plan/placement/models.h"

namespace pipewright {

namespace {

using Strings = std::vector<std::string>;

// Returns "name device" for each assignment.
Strings Assigned(const GreedyResult& result) {
  Strings lines;
  for (const DeviceChoice& choice : result.assignments)
    lines.push_back(choice.name + " " + choice.device);
  return lines;
}

// Linear layers of 16 + 4, 16 + 4 and 8 + 2 floats: 80, 80 and 40 bytes.
ModuleTree Layers() { return Tree(Sequential({Linear(4, 4), Linear(4, 4), Linear(4, 2)})); }

}  // namespace

TEST(Greedy, FillsDevicesInOrder) {
  const GreedyResult result =
      PlaceGreedily(Layers(), {{"0", 240}, {"cpu", 120}, {"disk", -1}}, {}, false);
  // Device 0 keeps 80 bytes free while the second layer is to come, and then 40.
  EXPECT_EQ(Assigned(result), (Strings{"0 0", "1 0", "2 0"}));
  EXPECT_EQ(result.assignments[0].why,
            "0 B + 80 B fit 240 B, 80 B kept free for the largest layer to come");
  EXPECT_EQ(result.assignments[2].why, "160 B + 40 B fit 240 B");
  EXPECT_TRUE(result.unplaced.empty() && result.too_small.empty());
}

TEST(Greedy, WithoutLimitsTheFirstDeviceTakesAll) {
  const GreedyResult result = PlaceGreedily(Layers(), {{"0", -1}, {"disk", -1}}, {}, false);
  EXPECT_EQ(Assigned(result), (Strings{"0 0", "1 0", "2 0"}));
}

TEST(Greedy, SplitsWhatDoesNotFit) {
  const std::vector<Budget> budgets = {{"0", 0}, {"1", 90}, {"disk", -1}};
  const ModuleTree tree = Tree(Sequential({Sequential({Linear(4, 4), Linear(4, 2)})}));
  EXPECT_EQ(Assigned(PlaceGreedily(tree, budgets, {}, false)), (Strings{"0.0 1", "0.1 disk"}));
  const GreedyResult whole = PlaceGreedily(tree, budgets, {"Sequential"}, false);
  EXPECT_EQ(Assigned(whole), Strings{"0 disk"});
  EXPECT_EQ(whole.too_small.at("1"), 120);
}

TEST(Greedy, NamesWhatNoDeviceTakes) {
  const GreedyResult result = PlaceGreedily(Layers(), {{"0", 0}, {"1", 90}}, {"Linear"}, false);
  EXPECT_EQ(Assigned(result), Strings{"0 1"});
  EXPECT_EQ(result.unplaced, (Strings{"1", "2"}));
}

TEST(Greedy, PlacesTiedModulesTogether) {
  const GreedyResult result =
      PlaceGreedily(Model("LM_tied"), {{"0", 0}, {"1", 200}, {"disk", -1}}, {}, false);
  EXPECT_EQ(result.assignments[0].name, "emb");
  EXPECT_EQ(result.assignments[0].device, "1");  // 160 bytes, counted once
  EXPECT_EQ(result.assignments[1].name, "head");
  EXPECT_EQ(result.assignments[1].why, "tied to emb");
}

// The layers have 440, 80 and 40 bytes. The device cannot take the first beside the room for the
// second.
TEST(Greedy, FallbackFillsADeviceThatWouldStayEmpty) {
  const ModuleTree tree = Tree(Sequential({Linear(10, 10), Linear(4, 4), Linear(4, 2)}));
  auto place = [&](int64_t limit, bool fallback) {
    return PlaceGreedily(tree, {{"0", limit}, {"disk", -1}}, {}, fallback);
  };
  for (bool fallback : {false, true})
    EXPECT_EQ(Assigned(place(520, fallback)), (Strings{"0 0", "1 disk", "2 disk"}));
  const GreedyResult without = place(519, false);
  EXPECT_EQ(Assigned(without), (Strings{"0 disk", "1 disk", "2 disk"}));
  EXPECT_EQ(without.too_small.at("0"), 520);
  EXPECT_EQ(without.reserved[0], 80);
  // It takes the first layer that leaves room for the largest.
  EXPECT_EQ(Assigned(place(519, true)), (Strings{"2 0", "0 disk", "1 disk"}));
  EXPECT_EQ(Assigned(place(479, true)), (Strings{"0 disk", "1 disk", "2 disk"}));
}

// Whatever the budgets, every tensor is placed once, and no device takes more than its budget.
TEST(Greedy, RespectsBudgets) {
  std::mt19937 random(7);
  for (const char* name : {"MFTx2", "Blk2head", "LM_tied", "TIED2", "GPT", "GPT_tied", "FB"})
    for (int i = 0; i < 40; ++i) {
      const ModuleTree tree = Model(name);
      std::vector<Budget> budgets;
      for (const char* device : {"0", "1", "2", "cpu"})
        budgets.push_back({device, static_cast<int64_t>(random() % 2000)});
      budgets.push_back({"disk", -1});
      const GreedyResult result = PlaceGreedily(tree, budgets, {}, i % 2 == 1);
      EXPECT_TRUE(result.unplaced.empty());
      std::set<std::string> names;
      DeviceMap map;
      for (const DeviceChoice& choice : result.assignments) {
        EXPECT_TRUE(names.insert(choice.name).second) << choice.name;
        map.emplace_back(choice.name, choice.device);
      }
      EXPECT_TRUE(CheckDeviceMap(tree, map).Usable()) << name;
      EXPECT_TRUE(CheckDeviceMap(tree, map).split_ties.empty()) << name;
      const std::vector<std::string> devices = TensorDevices(tree, map);
      for (const Budget& budget : budgets) {
        std::set<int> held;
        for (size_t t = 0; t < devices.size(); ++t)
          if (devices[t] == budget.device) held.insert(tree.tensors[t].first);
        int64_t bytes = 0;
        for (int t : held) bytes += tree.tensors[static_cast<size_t>(t)].bytes;
        EXPECT_TRUE(budget.unlimited() || bytes <= budget.limit) << name << " " << budget.device;
      }
    }
}

}  // namespace pipewright
