// Runs the work of an MPI process, reports its errors and ends the other ranks.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "base/process/launched_rank.h"
#include "base/process/messages.h"
#include "runtime/transport/fault_transport.h"
#include "runtime/transport/mpi_abort.h"
#include "runtime/transport/mpi_transport.h"
#include "runtime/watch/watch.h"

namespace pipewright {

int RunMpi(int* argc, char*** argv, const WatchOptions& watch_options,
           const std::function<int(Transport&)>& body, const MpiOptions& options) {
  const std::string program = Paint(watch_options.program, Severity::kError, STDERR_FILENO);
  Watch watch(watch_options);
  MpiTransport transport(argc, argv, options);
  try {
    watch.Join(transport);
    const int code = WithFaults(transport, body);
    // This rank was told to end, and has saved its work. Skips MPI_Finalize, because a launcher
    // that was told too no longer answers.
    if (const int signal = transport.status().Read().signal; signal && LaunchedRank() >= 0) {
      transport.status().SetState(RankState::kTerminated);
      std::fflush(nullptr);
      _exit(128 + signal);
    }
    return code;
  } catch (const AgreedError& e) {
    transport.status().SetState(RankState::kFinished);
    // Shown before MPI is finalized, because mpirun kills the others once a rank has failed.
    if (transport.rank() == 0) {
      watch.Explain();
      const std::string lines = e.Shown(program);
      std::fflush(nullptr);
      std::fwrite(lines.data(), 1, lines.size(), stderr);
      // With another communicator, the other ranks may belong to a larger program.
      if (options.communicator == MpiOptions::kWorld) AbortQuietly(MPI_COMM_WORLD, kFailure);
    } else if (options.communicator == MpiOptions::kWorld && LaunchedRank() >= 0) {
      // Rank 0 ends this rank. Ranks that finalize MPI meanwhile can make mpirun hang or crash
      // (PMIx 4.2.2).
      std::this_thread::sleep_for(std::chrono::seconds(10));
    }
    return kFailure;
  } catch (const UsageError& e) {
    watch.GiveWay(transport.rank());
    transport.Abort(program + ": " + e.what(), kUsage);
  } catch (const std::exception& e) {
    watch.GiveWay(transport.rank());
    transport.Abort(program + ": " + e.what(), kFailure);
  }
}

int RunMpi(int* argc, char*** argv, const char* program, const std::function<int(Transport&)>& body,
           const MpiOptions& options) {
  return RunMpi(argc, argv, WatchOptionsFromEnvironment(program), body, options);
}

}  // namespace pipewright
