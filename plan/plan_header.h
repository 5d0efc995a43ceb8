// The lines before the first rank's in a plan's text: what its actions cannot say.
#pragma once
#include <string>
#include <string_view>

#include "plan/plan.h"

namespace pipewright {

// `text`: whole lines, each of which begins with '#'. Sets plan.shared, plan.recompute and
// `steps` (left alone where no line gives it); "# " begins a remark. Throws Error("path:line").
void ReadHeader(std::string_view text, const std::string& path, Plan& plan, int& steps);

// Where plan.layout.header says the same as the plan, as it was written; else one line for each
// thing to say, in a defined order. `steps`: 0 where the actions tell.
std::string WriteHeader(const Plan& plan, int steps);

// How many bytes at the front of `text` are lines that begin with '#'.
size_t HeaderSize(std::string_view text);

}  // namespace pipewright
