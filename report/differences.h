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

// Compares two files. Throws Error if one cannot be read, or if they are of different kinds.
Differences FindDifferences(const std::string& first, const std::string& second);

// Returns one line per difference, or the first ones and how many more there are.
std::string DifferencesText(const Differences& differences, const std::string& first,
                            const std::string& second);
Json DifferencesJson(const Differences& differences);

}  // namespace pipewright
