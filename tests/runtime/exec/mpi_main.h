#pragma once
#include "runtime/transport/mpi_transport.h"

namespace pipewright {

// All ranks of the job.
Transport& World();

}  // namespace pipewright
