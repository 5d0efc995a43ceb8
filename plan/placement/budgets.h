// Lists the devices that a model may be placed on, and the bytes that it may take on each.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/placement/tree/module_tree.h"

namespace pipewright {

struct Budget {
  std::string device;  // "0", "1", ...: accelerators; "cpu"; "disk"
  int64_t limit = -1;  // bytes; -1: no limit
  bool accelerator() const { return device != "cpu" && device != "disk"; }
  bool unlimited() const { return limit < 0; }
};

// Parses "0=10GiB,1=10GiB,cpu=30GiB,disk=2TB", or several such texts; a bare number is bytes. Sorts
// accelerators by number, then cpu, then disk, which is added without limit if it is not named.
// (Without cpu, what does not fit on the accelerators goes to disk.) Throws Error naming
// --max-memory.
std::vector<Budget> ParseBudgets(const std::vector<std::string>& texts);

// Returns the budgets that accelerate 1.15 computes for "balanced" and, with `low_zero`, for
// "balanced_low_0": each accelerator but the last gets the mean and a margin of 1.25 times the
// larger of the first block of a no_split class and the mean leaf module. Does not repeat its
// failures on gaps in the numbers (KeyError, the whole model on device 0): counts only accelerators
// with a positive budget, of which `low_zero` keeps the first one free.
std::vector<Budget> AccelerateBalancedBudgets(const ModuleTree& tree, std::vector<Budget> budgets,
                                              const std::vector<std::string>& no_split,
                                              bool low_zero);

}  // namespace pipewright
