#include "runtime/nccl/cuda_environment.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

namespace pipewright {

static const char kConnections[] = "CUDA_DEVICE_MAX_CONNECTIONS";
static const char kLoading[] = "CUDA_MODULE_LOADING";
static std::string replaced_loading;

void SetCudaEnvironment() {
  setenv(kConnections, std::to_string(kMostConnections).c_str(), /*overwrite=*/0);
  // From 2.22 on, NCCL would connect ranks at the first sum that needs it, and block the host.
  setenv("NCCL_RUNTIME_CONNECT", "0", /*overwrite=*/1);
  // Loading a kernel at its first use may wait for the whole device, and so for transfers that wait
  // for other ranks.
  const std::string eager = "EAGER";
  const char* set = std::getenv(kLoading);
  if (set && set == eager) return;
  if (set) replaced_loading = set;
  setenv(kLoading, eager.c_str(), /*overwrite=*/1);
}

const std::string& ReplacedModuleLoading() { return replaced_loading; }

int CudaConnections() {
  const char* set = std::getenv(kConnections);
  return set ? std::min(std::atoi(set), kMostConnections) : 8;
}

bool LaunchesBlock() {
  const char* set = std::getenv("CUDA_LAUNCH_BLOCKING");
  return set && std::atoi(set) != 0;
}

std::string CudaBusId(int device) {
  // LibTorch has loaded the library, if it has one.
  using Function = int (*)(char* id, int length, int device);
  const auto get = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
  char id[64] = "";
  return get && get(id, sizeof id, device) == 0 ? id : "";
}

}  // namespace pipewright
