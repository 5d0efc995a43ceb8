#include "plan/placement/process_bytes.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/placement/tree/read_tree.h"
#include "tests/plan/placement/models.h"

namespace pipewright {
namespace {

constexpr int64_t kMegabyte = 1'000'000;

// Ten layers of a megabyte each.
ModuleTree TenLayers() {
  std::vector<Json> layers(10, Linear(500, 500, false));
  return ReadModuleTree({{"", Sequential(layers)}}, "model");
}

PlaceOptions Options(std::vector<std::string> budgets) {
  PlaceOptions options;
  options.budgets = ParseBudgets(budgets);
  return options;
}

const BudgetUse& Of(const Placement& placement, const std::string& device) {
  for (const BudgetUse& budget : placement.budgets)
    if (budget.device == device) return budget;
  throw std::runtime_error("no device " + device);
}

TEST(ProcessBytes, TwoSlotsAndTheProcessComeOnTop) {
  Placement placement = Place(TenLayers(), Options({"cpu=5MB"}));
  CountProcesses(placement, nullptr);
  const BudgetUse& cpu = Of(placement, "cpu");
  EXPECT_EQ(cpu.slots, 2 * kMegabyte);
  EXPECT_EQ(cpu.process, kProcessBytes);
  EXPECT_EQ(cpu.Peak(), cpu.used + 2 * kMegabyte + kProcessBytes);
  EXPECT_GT(cpu.Peak(), 5 * kMegabyte);
  EXPECT_EQ(Of(placement, "disk").process, 0);
}

TEST(ProcessBytes, WithoutAnythingOnDiskThereAreNoSlots) {
  Placement placement = Place(TenLayers(), Options({"0=6MB", "1=6MB"}));
  CountProcesses(placement, nullptr);
  for (const char* device : {"0", "1"}) {
    EXPECT_EQ(Of(placement, device).slots, 0);
    EXPECT_EQ(Of(placement, device).process, kProcessBytes);
  }
}

TEST(ProcessBytes, WholeProcessesKeepToTheirBudgets) {
  for (const char* policy : {"auto", "sequential", "balanced", "optimal"})
    for (int64_t megabytes : {3, 4, 7, 12}) {
      const int64_t limit = kProcessBytes + megabytes * kMegabyte;
      PlaceOptions options = Options({"cpu=" + std::to_string(limit)});
      options.policy = PlacePolicyFromText(policy);
      const Placement placement = PlaceProcesses(TenLayers(), options, nullptr);
      EXPECT_TRUE(placement.uncovered.empty());
      EXPECT_LE(Of(placement, "cpu").Peak(), limit) << policy << " " << megabytes;
      EXPECT_EQ(Of(placement, "cpu").limit, limit);
      if (megabytes == 12) {
        EXPECT_EQ(Of(placement, "cpu").used, 10 * kMegabyte);
      }
      if (megabytes == 7) {
        EXPECT_GE(Of(placement, "cpu").used, 4 * kMegabyte) << policy;
      }
    }
}

// Buffers of modules on disk are in memory but not limited, so that lowering the budget by what is
// too much may change nothing: with a byte each time, there would be 200 million placements.
TEST(ProcessBytes, BuffersThatStayInMemory) {
  std::vector<Json> layers(4, ModuleJson("Layer", {{"w", TensorJson({2'500'000})}}, Json::object(),
                                         {{"b", TensorJson({125'000'000})}}));
  const ModuleTree tree = ReadModuleTree({{"", Sequential(layers)}}, "model");
  PlaceOptions options = Options({"cpu=100GB"});
  // A byte less than with one or two layers in memory, and slots for two others.
  for (const int64_t resident : {1, 2}) {
    options.budgets[0].limit =
        (2000 + 10 * resident) * kMegabyte + 2 * 510 * kMegabyte + kProcessBytes - 1;
    const Placement placement = PlaceProcesses(tree, options, nullptr);
    EXPECT_LE(Of(placement, "cpu").Peak(), options.budgets[0].limit);
    EXPECT_GT(Of(placement, "cpu").used, 0);
  }
}

TEST(ProcessBytes, SlotsThatDoNotFitAreRefused) {
  PlaceOptions options = Options({"cpu=" + std::to_string(kProcessBytes + kMegabyte)});
  EXPECT_THROW(PlaceProcesses(TenLayers(), options, nullptr), Error);
}

}  // namespace
}  // namespace pipewright
