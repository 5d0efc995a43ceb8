// Finds the differences between two JSON documents.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"

namespace pipewright {

struct Difference {
  std::string where;          // "modules.module1.covers", "rank 0, action 3"
  std::string first, second;  // "" on the side that lacks the value
};

// Appends a difference for each value that differs; `where` is the name of the documents, or "".
// Entries of lists are matched by their "name" if all have one.
void CompareJson(const Json& first, const Json& second, const std::string& where,
                 std::vector<Difference>& list);

}  // namespace pipewright
