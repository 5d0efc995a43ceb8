// Finds the differences between two files of one kind: packages, confs, plans, jobs or traces.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"

namespace pipewright {

struct Difference {
  std::string where;          // "modules.module1.covers", "rank 0, action 3"
  std::string first, second;  // "" where this side has nothing there
};

struct Differences {
  std::string kind;  // package, conf, plan, job, trace
  std::vector<Difference> list;
};

// Throws Error for files that cannot be read, and for two of different kinds.
Differences FindDifferences(const std::string& first, const std::string& second);

// A line a difference, and how many more there are than a person reads.
std::string DifferencesText(const Differences& differences, const std::string& first,
                            const std::string& second);
Json DifferencesJson(const Differences& differences);

}  // namespace pipewright
