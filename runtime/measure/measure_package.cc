#include "runtime/measure/measure_package.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "runtime/cpu/memory_settings.h"
#include "runtime/exec/phase.h"
#include "runtime/transport/thread_transport.h"
#ifdef PIPEWRIGHT_MPI
#include "runtime/transport/mpi_transport.h"
#endif

namespace pipewright {

static bool UnderMpirun() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_SIZE"})
    if (std::getenv(name)) return true;
  return false;
}

void MeasureOnRanks(const ProfileOptions& options, int in_process,
                    const std::function<void()>& check,
                    const std::function<void(const Profile&, const std::string& source)>& show) {
  KeepFreedMemory();  // measures under the conditions of a run
  auto work = [&](Transport& transport) {
    std::string source;
    Phase(transport, "opening outputs", [&] {
      if (transport.rank() == 0) check();
    });
    Profile profile = MeasurePackage(options, transport, source);
    Phase(transport, "writing", [&] {
      if (transport.rank() == 0) show(profile, source);
    });
  };
  if (in_process > 0 || !UnderMpirun()) {
    RunThreads(std::max(in_process, 1), work);
    return;
  }
#ifdef PIPEWRIGHT_MPI
  // While one rank measures, the others wait for any length of time.
  WatchOptions watch = WatchOptionsFromEnvironment("pipewright");
  watch.stall = {0, 0};
  int code = RunMpi(nullptr, nullptr, watch, [&](Transport& transport) {
    work(transport);
    return static_cast<int>(kSuccess);
  });
  if (code != kSuccess) throw CLI::RuntimeError(code);
#else
  throw Error("pipewright profile", "was built without MPI", "run it without mpirun");
#endif
}

}  // namespace pipewright
