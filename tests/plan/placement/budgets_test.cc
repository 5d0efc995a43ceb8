#include "plan/placement/budgets.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace pipewright {

namespace {

std::string Text(const std::vector<Budget>& budgets) {
  std::string text;
  for (const Budget& budget : budgets)
    text += budget.device + "=" + std::to_string(budget.limit) + " ";
  return text;
}

std::string BudgetsError(const std::vector<std::string>& texts) {
  return ErrorOf([&] { ParseBudgets(texts); });
}

}  // namespace

TEST(Budgets, AreSortedAndEndWithTheDisk) {
  EXPECT_EQ(Text(ParseBudgets({"cpu=1KiB,10=30,2=20"})), "2=20 10=30 cpu=1024 disk=-1 ");
  EXPECT_EQ(Text(ParseBudgets({"0=1KB", "disk=5, 1=2"})), "0=1000 1=2 disk=5 ");
  EXPECT_EQ(Text(ParseBudgets({})), "disk=-1 ");
}

TEST(Budgets, KindsOfDevices) {
  EXPECT_TRUE((Budget{"3", 1}).accelerator());
  EXPECT_FALSE((Budget{"cpu", 1}).accelerator());
  EXPECT_FALSE((Budget{"disk", 1}).accelerator());
  EXPECT_TRUE((Budget{"disk", -1}).unlimited());
  EXPECT_FALSE((Budget{"disk", 0}).unlimited());
}

TEST(Budgets, MistakesNameTheOption) {
  EXPECT_EQ(BudgetsError({"0"}),
            "--max-memory: \"0\" is not DEVICE=SIZE\n  as in 0=10GiB,cpu=30GiB");
  EXPECT_TRUE(BudgetsError({"0=1,0=2"}).ends_with("the device 0 is named twice"));
  EXPECT_NE(BudgetsError({"dsk=1"}).find("did you mean \"disk\"?"), std::string::npos);
  EXPECT_NE(BudgetsError({"-1=1"}), "");
  EXPECT_NE(BudgetsError({"0=lots"}), "");
}

}  // namespace pipewright
