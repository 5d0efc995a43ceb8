// Finds the differences between two files of one kind: packages, confs, plans, jobs or traces.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "formats/json_differences.h"

namespace pipewright {

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
