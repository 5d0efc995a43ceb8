// Supervise runs a command under mpirun and restarts it when it fails.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

struct SuperviseOptions {
  std::string program;             // prefix of messages
  std::string mpirun = "mpirun";   // may include options, separated by spaces
  std::vector<std::string> hosts;  // "name" or "name:slots", for mpirun --host; empty: no --host
  int ranks = 0;
  int restarts = 0;
  // Continues with fewer ranks: as many as the hosts that still answer provide, and with one fewer
  // if a run has died twice without completing a step in between.
  bool elastic = false;

  std::vector<std::string> command;  // without --resume, --resume-from and --conf
  std::string package;               // its modules are regrouped for fewer ranks
  std::string conf;                  // written for `ranks` ranks; "": the package's
  bool resumes = false;              // the command accepts --resume
  bool stops = false;                // on SIGUSR1, the command ends after its step
  std::string checkpoints;           // folder that it resumes from; "": unknown
  // The checkpoint that the user names. Runs resume from it until one of them has written another
  // into `checkpoints`. "": none.
  std::string resume_from;
};

// Returns the exit code of the last run, 0 if it succeeded. SIGUSR1 is forwarded to the run as soon
// as its ranks have met (it finishes the step, writes a checkpoint and exits normally); so is a
// first SIGINT if the command `stops`. SIGTERM and another SIGINT end the run and the supervisor;
// SIGTSTP stops both until SIGCONT. The banners in which mpirun comments on the end of ranks are
// dropped. While hosts are probed for a restart, SIGTERM and SIGINT end the supervisor with 128 +
// signal, and after SIGUSR1 no run is started. Ignores SIGPIPE: a run goes on although nobody reads
// what is said of it.
//
// If two runs have failed from a checkpoint without writing a newer one, the next run resumes from
// the next older valid checkpoint.
//
// A wrong command line (exit code 2) and an error that all ranks agree on do not cause a restart,
// because they would recur.
int Supervise(const SuperviseOptions& options);

// Throws Error if this process may open too few files for an mpirun of so many ranks, which would
// hang.
void CheckOpenFiles(const SuperviseOptions& options);

}  // namespace pipewright
