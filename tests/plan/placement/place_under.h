// Makes placements for tests, and compares them.
#pragma once
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "plan/placement/place.h"

namespace pipewright {

inline Placement PlaceUnder(const ModuleTree& tree, const std::string& budgets,
                            PlaceOptions options = {}) {
  options.budgets = ParseBudgets({budgets});
  return Place(tree, options);
}

// Returns the map as sorted JSON, to compare regardless of order.
inline nlohmann::json Map(const Placement& placement) {
  EXPECT_TRUE(placement.uncovered.empty());
  return nlohmann::json::parse(DeviceMapJson(placement.map).dump());
}
inline nlohmann::json Map(const ModuleTree& tree, const std::string& budgets,
                          PlaceOptions options = {}) {
  return Map(PlaceUnder(tree, budgets, options));
}
inline nlohmann::json Parsed(const std::string& text) { return nlohmann::json::parse(text); }

inline const BudgetUse& Use(const Placement& placement, const std::string& device) {
  for (const BudgetUse& use : placement.budgets)
    if (use.device == device) return use;
  throw std::out_of_range(device);
}

}  // namespace pipewright
