#include "runtime/transport/mpi_abort.h"

#include <unistd.h>

#include "base/process/launched_rank.h"

#ifdef OPEN_MPI
// Open MPI's MPI_Abort calls this after it has shown eight lines in which the message gets lost.
extern "C" __attribute__((weak)) int ompi_mpi_abort(MPI_Comm comm, int exit_code);
#endif

namespace pipewright {

void AbortQuietly([[maybe_unused]] MPI_Comm comm, [[maybe_unused]] int exit_code) {
#ifdef OPEN_MPI
  if (!ompi_mpi_abort || LaunchedRank() < 0) return;
  ompi_mpi_abort(comm, exit_code);
  _exit(exit_code);
#endif
}

}  // namespace pipewright
