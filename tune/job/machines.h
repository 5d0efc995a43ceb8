// Machines that are not at hand, described in a file (configs/schemas/machines.schema.json).
#pragma once
#include <string>

#include "plan/tune/problem.h"

namespace pipewright {

// Reads the machines of ranks, one for each device: the fastest first, and those of equal speed in
// the order of the file. Throws Error naming file and key for anything wrong, and if the file has
// fewer than `ranks` devices.
TuneMachines ReadMachines(const std::string& path, int ranks);

}  // namespace pipewright
