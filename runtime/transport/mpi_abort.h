// Ends the processes of a communicator without the banner that MPI_Abort shows.
#pragma once
#include <mpi.h>

namespace pipewright {

// Returns only if this process has no launcher, or if MPI has no way to do it.
void AbortQuietly(MPI_Comm comm, int exit_code);

}  // namespace pipewright
