// Finds what a launcher told this process, before MPI starts, and makes it forget that.
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

// Removes from this process what mpirun gave it, after which it can start mpirun itself: its
// binding to a core, and variables of the environment, but not those with which users choose
// components of Open MPI (OMPI_MCA_btl).
void ForgetMpirun();

}  // namespace pipewright
