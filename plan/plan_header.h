// Reads and writes the header of a plan's text: facts that the actions do not express.
#pragma once
#include <string>
#include <string_view>

#include "plan/plan.h"

namespace pipewright {

// `text` consists of whole lines that begin with '#'. Sets plan.shared, plan.recompute and `steps`
// (unchanged if no line gives it); "# " begins a remark. Throws Error("path:line").
void ReadHeader(std::string_view text, const std::string& path, Plan& plan, int& steps);

// Returns plan.layout.header if it says the same as the plan; otherwise one line per fact, in a
// fixed order. `steps` is 0 if the actions determine it.
std::string WriteHeader(const Plan& plan, int steps);

// Returns the number of bytes at the front of `text` in lines that begin with '#'.
size_t HeaderSize(std::string_view text);

}  // namespace pipewright
