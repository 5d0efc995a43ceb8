// Rules of `check` about this machine: cores, limits, MPI.
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "base/text.h"
#include "check/rules.h"
#include "runtime/watch/supervise.h"

namespace pipewright {

static bool IsProgram(const std::string& name) {
  const char* path = std::getenv("PATH");
  for (const std::string& folder : Split(path ? path : "", ':'))
    if (!folder.empty() && access((folder + "/" + name).c_str(), X_OK) == 0) return true;
  return false;
}

// Returns the number of cores on which this process may run.
static int CountCores() {
  cpu_set_t mine;
  if (sched_getaffinity(0, sizeof mine, &mine) != 0)
    return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  return CPU_COUNT(&mine);
}

void CheckMachine(const std::optional<Job>& job, CheckResult& result) {
  if (!IsProgram("mpirun"))
    Add(result, Severity::kWarning, "machine",
        "mpirun: is not in PATH, and starts the ranks\n  install Open MPI (Debian: openmpi-bin), "
        "or run ranks as threads: --in-process N");
  if (result.ranks == 0) return Skip(result, "machine", "the number of ranks is unknown");
  Passes(result, "machine", [&] {
    SuperviseOptions options;
    options.ranks = result.ranks;
    CheckOpenFiles(options);
  });
  const int cores = CountCores(), threads = result.ranks * (job ? job->threads : 1);
  if (threads > cores)
    Add(result, Severity::kNote, "machine",
        "this machine: " + Counted(threads, "thread") + " of " + Counted(result.ranks, "rank") +
            " share " + Counted(cores, "core") +
            ": they take turns if all ranks run here (--hosts names others)");
}

}  // namespace pipewright
