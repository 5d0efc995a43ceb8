#include "runtime/nccl/cuda_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace pipewright {
namespace {

TEST(CudaEnvironment, KeepsWhatTheUserHasSet) {
  for (const char* name : {"CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_MODULE_LOADING"}) unsetenv(name);
  EXPECT_EQ(CudaConnections(), 8);  // CUDA's own default
  SetCudaEnvironment();
  EXPECT_EQ(CudaConnections(), 32);
  EXPECT_EQ(getenv("CUDA_MODULE_LOADING"), std::string("EAGER"));
  EXPECT_EQ(getenv("NCCL_RUNTIME_CONNECT"), std::string("0"));
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "12", 1);
  SetCudaEnvironment();
  EXPECT_EQ(CudaConnections(), 12);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "64", 1);
  EXPECT_EQ(CudaConnections(), 32);  // as CUDA does
}

// A kernel that is loaded late would wait for transfers.
TEST(CudaEnvironment, KernelsAreLoadedAtTheStart) {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  SetCudaEnvironment();
  EXPECT_EQ(ReplacedModuleLoading(), "");
  setenv("CUDA_MODULE_LOADING", "LAZY", 1);
  for (int call = 0; call < 2; ++call) {
    SetCudaEnvironment();
    EXPECT_EQ(getenv("CUDA_MODULE_LOADING"), std::string("EAGER"));
    EXPECT_EQ(ReplacedModuleLoading(), "LAZY");
  }
}

}  // namespace
}  // namespace pipewright
