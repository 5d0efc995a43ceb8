// Reads and writes schedules and plans as text: PyTorch's CSV grammar
// (torch.distributed.pipelining, _Action), one line per rank, extended by suffixes: `2SEND_F5>4`
// (destination stage), `4RECV_F5<2` (source stage), `#1` (receive buffer), `@3` (weight version).
// An empty cell is idle.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "plan/plan.h"

namespace pipewright {

// Reads a schedule or a plan; WritePlan(ReadPlan(text)) == text for every text that can be read.
// If a stage has both B and W for a microbatch, B is the input gradient (older zb1p files) and
// becomes I. Throws Error("path:line:column"). If `mistakes` is given, adds the error of each cell
// that is not an action to it instead; if there are any, the plan is incomplete.
Plan ReadPlan(std::string_view text, const std::string& path,
              std::vector<Error>* mistakes = nullptr);

std::string WritePlan(const Plan& plan);

std::string ToText(const Action& action);
// Returns the name of a kind: "F", "SEND_F", "OVERLAP_F_B", ...
std::string KindName(ActionKind kind);

// Reads one cell, which is not empty. Throws Error(where).
Action ParseAction(std::string_view cell, const std::string& where);

}  // namespace pipewright
