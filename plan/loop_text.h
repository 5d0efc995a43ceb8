// A plan of any number of steps as text: the lines of a header, as in a plan, then three parts,
// each with one line a rank, behind the lines "#prologue", "#body" and "#epilogue". "#steps N" in
// the header says how many steps are meant; without it the body comes once.
#pragma once
#include <string>
#include <string_view>

#include "plan/steps.h"

namespace pipewright {

bool IsLoopText(std::string_view text);

// Sets `steps` to what the text means. Throws Error naming `path`.
StepLoop ReadLoop(std::string_view text, const std::string& path, int& steps);
std::string WriteLoop(const StepLoop& loop, int steps);

// A schedule or plan, or a loop, unrolled to `steps` (0: as its text says). Of a plain text the
// steps are what they are.
Plan ReadPlanOrLoop(std::string_view text, const std::string& path, int steps = 0);

}  // namespace pipewright
