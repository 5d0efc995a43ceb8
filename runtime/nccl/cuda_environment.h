// Sets what CUDA reads in the environment of the process when it starts, and names its devices.
#pragma once
#include <string>

namespace pipewright {

// Sets CUDA_DEVICE_MAX_CONNECTIONS if it is not set yet, and CUDA_MODULE_LOADING and
// NCCL_RUNTIME_CONNECT in any case. To be called before anything that may start CUDA, such as MPI.
void SetCudaEnvironment();

// Returns the value of CUDA_MODULE_LOADING that SetCudaEnvironment has replaced; "" if there was
// none. PyTorch sets it to LAZY for the programs that it starts.
const std::string& ReplacedModuleLoading();

// Returns the number of queues of a device that work independently of each other. Streams share
// them if there are more streams: a transfer at the head of a queue would then hold up the
// computation that its other side waits for. CUDA takes a larger number for the most that it has.
constexpr int kMostConnections = 32;
int CudaConnections();

// Returns true if CUDA returns from a launch only when its kernel has ended (CUDA_LAUNCH_BLOCKING).
bool LaunchesBlock();

// Returns the PCI bus id of a device, by its number in this process, such as "0000:41:00.0"; "" if
// LibTorch has not loaded a CUDA runtime that tells.
std::string CudaBusId(int device);

}  // namespace pipewright
