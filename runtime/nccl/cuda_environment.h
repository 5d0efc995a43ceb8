// Sets what CUDA reads in the environment of the process when it starts.
#pragma once

namespace pipewright {

// Sets variables that are not set yet. To be called before anything that may start CUDA, such as
// MPI.
void SetCudaEnvironment();

// Returns the number of queues of a device that work independently of each other. Streams share
// them if there are more streams: a transfer at the head of a queue would then hold up the
// computation that its other side waits for.
int CudaConnections();

}  // namespace pipewright
