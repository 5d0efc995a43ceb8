// `pipewright-run --restarts N ...`: the ranks under mpirun, and again when they fail.
#pragma once
#include <string>
#include <vector>

#include "runtime/commands/train.h"

namespace CLI {
class App;
}

namespace pipewright {

void AddSupervisor(CLI::App& app);

// Returns whether one of its options was given.
bool IsSupervised();

// Does it and leaves, by CLI::RuntimeError with the exit code. `arguments`: the whole command line.
[[noreturn]] void RunSupervised(const std::vector<std::string>& arguments, const RunOptions& run,
                                bool trains);

}  // namespace pipewright
