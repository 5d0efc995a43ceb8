#include "mpi_pingpong.h"

#include <mpi.h>

double RawPingPong(char* arena, size_t stride, int buffers, size_t bytes, int rounds) {
  int rank, count = (int)bytes;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Barrier(MPI_COMM_WORLD);
  double start = MPI_Wtime();
  for (int i = 0; i < rounds; ++i) {
    char* out = arena + (size_t)(2 * i % buffers) * stride;
    char* in = arena + (size_t)((2 * i + 1) % buffers) * stride;
    if (rank == 0) {
      MPI_Send(out, count, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
      MPI_Recv(in, count, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
      MPI_Recv(in, count, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      MPI_Send(out, count, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
    }
  }
  return (MPI_Wtime() - start) / (2 * rounds);
}
