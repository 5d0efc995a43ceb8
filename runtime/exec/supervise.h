// Runs a command under mpirun, and again when it fails.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

struct SuperviseOptions {
  std::string program;             // begins messages
  std::string mpirun = "mpirun";   // with options of its own, separated by blanks
  std::vector<std::string> hosts;  // "name" or "name:slots", for mpirun --host; empty: mpirun's
  int ranks = 0;
  int restarts = 0;
  // Go on with fewer ranks: as many as the hosts have that still answer; and with one fewer where a
  // run has died twice without a step between.
  bool elastic = false;

  std::vector<std::string> command;  // without --resume and --conf
  std::string package;               // whose modules are grouped for fewer ranks
  std::string conf;                  // for `ranks` ranks; "": the package's
  bool resumes = false;              // whether the command takes --resume
};

// Returns the last run's exit code: 0 when one has ended well. SIGUSR1 is handed on to the run (it
// finishes the step, writes a checkpoint and ends well), SIGTERM and SIGINT end it and all.
//
// No restart for a wrong command line (exit code 2), nor for an error that all ranks have agreed
// on: both would come again.
int Supervise(const SuperviseOptions& options);

}  // namespace pipewright
