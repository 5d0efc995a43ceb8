// `pipewright-run --restarts N ...`: starts the ranks under mpirun, and again when they fail.
#pragma once
#include <string>
#include <vector>

#include "runtime/commands/run_options.h"

namespace CLI {
class App;
}

namespace pipewright {

void AddSupervisor(CLI::App& app);

// Returns true if one of the supervisor's options was given.
bool IsSupervised();

// Returns the number of ranks that -n gives, or 0; the hosts, as given; and the mpirun command, ""
// unless it was given.
int SupervisedRanks();
std::string SupervisedHosts();
std::string SupervisedMpirun();
void SetSupervisedRanks(int ranks);
// Makes this process start the ranks, as if -n and --hosts were given.
void StartRanks(int ranks, const std::string& hosts);
// Returns true if failed runs are restarted.
bool Restarts();

// Supervises the run, then exits by throwing CLI::RuntimeError with the exit code. `arguments` is
// the whole command line.
[[noreturn]] void RunSupervised(const std::vector<std::string>& arguments, const RunOptions& run,
                                bool trains);

}  // namespace pipewright
