// Finds what a launcher told this process, before MPI starts.
#pragma once
#include <cstdlib>
#include <initializer_list>

namespace pipewright {

// Returns the rank that mpirun or srun set in the environment; -1 if neither started this process.
inline int LaunchedRank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name)) return std::atoi(rank);
  return -1;
}

// Returns the number of processes that mpirun started with this one; 0 without mpirun.
inline int LaunchedRanks() {
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  return size ? std::atoi(size) : 0;
}

}  // namespace pipewright
