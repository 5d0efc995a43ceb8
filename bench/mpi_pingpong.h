/* Sends with raw MPI, as a C program would, to compare with the transport. */
#pragma once
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Sends `bytes` there and back `rounds` times between ranks 0 and 1 of MPI_COMM_WORLD (blocking
 * MPI_Send and MPI_Recv), taking turns over `buffers` stretches of `arena`, `stride` bytes apart.
 * Returns seconds for one way. */
double RawPingPong(char* arena, size_t stride, int buffers, size_t bytes, int rounds);

#ifdef __cplusplus
}
#endif
