// Reads and writes plans of any number of steps as text: header lines, as in a plan, then three
// parts with one line per rank, after the lines "#prologue", "#body" and "#epilogue". "#steps N" in
// the header gives the number of steps; without it the body runs once.
#pragma once
#include <string>
#include <string_view>

#include "plan/multi_step.h"

namespace pipewright {

bool IsLoopText(std::string_view text);

// Sets `steps` to the number in the text. Throws Error naming `path`.
StepLoop ReadLoop(std::string_view text, const std::string& path, int& steps);
std::string WriteLoop(const StepLoop& loop, int steps);

// Reads a schedule or plan, or a loop, which it unrolls to `steps` (0: the number in its text). A
// schedule or plan keeps its number of steps.
Plan ReadPlanOrLoop(std::string_view text, const std::string& path, int steps = 0);

}  // namespace pipewright
