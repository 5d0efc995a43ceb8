// Starts the ranks of a command of `pipewright-run`: as threads of this process, as the process of
// one rank under mpirun, or under the supervisor.
#pragma once
#include <functional>

#include "runtime/commands/run_options.h"
#include "runtime/exec/transport.h"

namespace CLI {
class App;
}

namespace pipewright {

// Stores the command line, which the supervisor passes on to the ranks.
void SetCommandLine(int argc, char** argv);

// Adds the options of the program, which precede or follow the command.
void AddLaunchOptions(CLI::App& app);

// Returns the number of ranks that are threads of this process; 0 without --in-process.
int ThreadRanks();

// Returns the number of ranks that this process starts, by threads or mpirun; 0 if it starts none.
int StartedRanks();
// Starts this number of ranks instead, with another job on their command line.
void SetStarted(int ranks, const std::string& job, const std::string& other_job);

struct LaunchTraits {
  bool trains = false;         // a signal ends the run after its step
  bool progress_line = false;  // a line on the terminal may show how far the run is
};

// Runs `work` on every rank that is here. Sets `options.threads` to 1 for several ranks that are
// threads, unless it or OMP_NUM_THREADS is given. Throws UsageError, Error, or CLI::RuntimeError
// with an exit code.
void RunRanks(RunOptions& options, const LaunchTraits& traits,
              const std::function<void(Transport&)>& work);

}  // namespace pipewright
