// Gives the tests of mpi_main.cc their transport.
#pragma once
#include "runtime/transport/mpi_transport.h"

namespace pipewright {

// Returns the transport of all ranks of the job.
Transport& World();

}  // namespace pipewright
