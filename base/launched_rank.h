// The rank that a launcher has given this process, known before MPI starts.
#pragma once
#include <cstdlib>
#include <initializer_list>
#include <initializer_list>

namespace pipewright {

// Returns what mpirun or srun says; -1 for a process that neither has started.
inline int LaunchedRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return -1;
}

}  // namespace pipewright
