// Compares optimal placements with their bounds, and with filling devices in order.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "plan/placement/place.h"
#include "tests/plan/placement/models.h"

namespace pipewright {
namespace {

// `buffers` has the sizes of the first layers' buffers.
Json Flat(const std::vector<int64_t>& sizes, const std::vector<int64_t>& buffers = {}) {
  Json children = Json::object();
  for (size_t i = 0; i < sizes.size(); ++i) {
    Json layer = ModuleJson("Layer", {{"w", TensorJson({sizes[i]}, "U8")}});
    if (i < buffers.size()) layer["buffers"] = {{"b", TensorJson({buffers[i]}, "U8")}};
    children["m" + std::to_string(i)] = layer;
  }
  return Container("Flat", children);
}

Placement Optimal(const ModuleTree& tree, const std::string& budgets, int slots = 2) {
  PlaceOptions options;
  options.policy = PlacePolicy::kOptimal;
  options.budgets = ParseBudgets({budgets});
  options.slots = slots;
  return Place(tree, options);
}

const BudgetUse& Use(const Placement& placement, const std::string& device) {
  for (const BudgetUse& use : placement.budgets)
    if (use.device == device) return use;
  throw std::out_of_range(device);
}

// Returns the least number of bytes to load over all assignments: layers that are not resident pass
// through `slots` of the largest one's size on device 0, which holds their buffers.
int64_t BruteForce(const std::vector<int64_t>& sizes, const std::vector<int64_t>& buffers,
                   const std::vector<int64_t>& limits, int slots) {
  size_t choices = limits.size() + 1;
  int64_t best = INT64_MAX;
  size_t all = 1;
  for (size_t i = 0; i < sizes.size(); ++i) all *= choices;
  for (size_t code = 0; code < all; ++code) {
    std::vector<int64_t> load(choices, 0);
    int64_t largest = 0;
    size_t rest = code;
    for (size_t i = 0; i < sizes.size(); ++i, rest /= choices) {
      const size_t at = rest % choices;
      load[at] += sizes[i];
      load[at == limits.size() ? 0 : at] += buffers[i];
      if (at == limits.size()) largest = std::max(largest, sizes[i]);
    }
    bool fits = true;
    for (size_t d = 0; d < limits.size(); ++d)
      fits = fits && load[d] + (d == 0 ? slots * largest : 0) <= limits[d];
    if (fits) best = std::min(best, load.back());
  }
  return best;
}

TEST(Optimal, BeatenByNoAssignment) {
  std::mt19937 random(5);
  int offloading = 0;
  for (int round = 0; round < 600; ++round) {
    size_t devices = 1 + random() % 2, n = 2 + random() % 6;
    std::vector<int64_t> sizes, buffers, limits;
    std::string budgets;
    for (size_t i = 0; i < n; ++i) {
      sizes.push_back(1 + random() % 20);
      buffers.push_back(round % 2 ? random() % 6 : 0);
    }
    for (size_t d = 0; d < devices; ++d) {
      limits.push_back(1 + random() % 60);
      budgets += std::to_string(d) + "=" + std::to_string(limits[d]) + ",";
    }
    int64_t best = BruteForce(sizes, buffers, limits, 2);
    if (best == INT64_MAX) continue;  // even the slots do not fit
    Placement placement = Optimal(Tree(Flat(sizes, buffers)), budgets + "cpu=1GB");
    EXPECT_EQ(placement.moved, best) << budgets << Json(sizes).dump() << Json(buffers).dump();
    EXPECT_LE(placement.moved_bound, best);
    EXPECT_TRUE(placement.uncovered.empty());
    EXPECT_EQ(Use(placement, "cpu").used, best);
    for (size_t d = 0; d < devices; ++d) {
      const BudgetUse& use = Use(placement, std::to_string(d));
      EXPECT_LE(use.used + use.reserved, use.limit);
    }
    offloading += best > 0;
  }
  EXPECT_GT(offloading, 50);
}

TEST(Optimal, ReachesItsBoundOnEqualLayers) {
  Placement placement = Optimal(Tree(Flat(std::vector<int64_t>(40, 100))), "0=2000,cpu=1GB");
  EXPECT_EQ(placement.moved, 2200);  // 18 resident beside two slots
  EXPECT_EQ(placement.moved_bound, 2200);
  EXPECT_EQ(Use(placement, "0").reserved, 200);
}

TEST(Optimal, ResidentInRunsWhereEverythingFits) {
  Placement placement = Optimal(Tree(Flat(std::vector<int64_t>(8, 100))), "0=400,1=400,cpu=1GB");
  EXPECT_EQ(placement.moved, 0);
  EXPECT_EQ(placement.moved_bound, 0);
  EXPECT_EQ(Use(placement, "0").reserved, 0);
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(DeviceOf(placement.map, "m" + std::to_string(i)), i < 4 ? "0" : "1");
}

TEST(Optimal, BuffersStayAndRamComesBeforeDisk) {
  Json children = Json::object();
  for (int i = 0; i < 4; ++i) {
    Json layer = ModuleJson("Layer", {{"w", TensorJson({100}, "U8")}});
    layer["buffers"] = {{"b", TensorJson({20}, "U8")}};
    children["m" + std::to_string(i)] = layer;
  }
  Placement placement = Optimal(Tree(Container("M", children)), "0=400,cpu=150,disk=1000");
  // One layer is resident: 120 with its buffer, 60 for the others' buffers, 200 for slots.
  EXPECT_EQ(placement.moved, 300);
  EXPECT_EQ(Use(placement, "0").used, 180);
  EXPECT_EQ(Use(placement, "0").reserved, 200);
  EXPECT_EQ(Use(placement, "cpu").used, 100);
  EXPECT_EQ(Use(placement, "disk").used, 200);
  // Without accelerators, RAM computes.
  Placement ram = Optimal(Tree(Flat(std::vector<int64_t>(10, 100))), "cpu=500");
  EXPECT_EQ(ram.moved, 700);
  EXPECT_EQ(Use(ram, "cpu").used, 300);
}

TEST(Optimal, FindsWhatFillingMisses) {
  // Only 6+4 and 5+5 fill both devices.
  Placement placement = Optimal(Tree(Flat({6, 5, 5, 4})), "0=10,1=10,cpu=100");
  EXPECT_EQ(placement.moved, 0);
}

}  // namespace
}  // namespace pipewright
