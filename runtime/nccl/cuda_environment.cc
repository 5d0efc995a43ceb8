#include "runtime/nccl/cuda_environment.h"

#include <cstdlib>

namespace pipewright {

static const char kConnections[] = "CUDA_DEVICE_MAX_CONNECTIONS";

void SetCudaEnvironment() {
  setenv(kConnections, "32", /*overwrite=*/0);  // the most that CUDA has
  // Loading a kernel at its first use may wait for the whole device, and so for transfers that wait
  // for other ranks.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
}

int CudaConnections() {
  const char* set = std::getenv(kConnections);
  return set ? std::atoi(set) : 8;
}

}  // namespace pipewright
