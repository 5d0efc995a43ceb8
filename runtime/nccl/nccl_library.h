// The functions of NCCL that runs call, without NCCL's header: its library is loaded when the first
// one is called. tests/runtime/nccl/declarations.cc compares them with nccl.h.
//
// Communicators, streams, and the addresses of device memory are void*. Functions return NcclResult
// as int; only CommAbort and CommGetAsyncError may be called while another thread is in a call with
// the same communicator.
#pragma once
#include <climits>
#include <cstddef>
#include <string>

namespace pipewright {

// The numbers that NCCL gives its enumerators.
enum NcclResult { kNcclSuccess = 0, kNcclRemoteError = 6, kNcclInProgress = 7 };
enum NcclType {
  kNcclUint8 = 1,
  kNcclFloat16 = 6,
  kNcclFloat32 = 7,
  kNcclFloat64 = 8,
  kNcclBfloat16 = 9
};
enum NcclOperation { kNcclSum = 0 };

// Names a communicator. One rank gets it, and gives it to the others.
struct NcclId {
  char bytes[128];
};

// The beginning of ncclConfig_t, as of 2.18. NCCL gives the fields that follow their defaults,
// since `size` and `version` say that they are not here.
struct NcclConfig {
  static constexpr int kDefault = INT_MIN;

  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = 1;  // calls return when their work is launched
  int cga_cluster_size = kDefault;
  int min_ctas = kDefault, max_ctas = kDefault;  // blocks of a kernel on the GPU
  const char* net_name = nullptr;
  int split_share = kDefault;
};

struct NcclFunctions {
  int (*GetVersion)(int* version) = nullptr;
  int (*GetUniqueId)(NcclId* id) = nullptr;
  int (*CommInitRankConfig)(void** comm, int ranks, NcclId id, int rank,
                            NcclConfig* config) = nullptr;
  int (*CommFinalize)(void* comm) = nullptr;
  int (*CommDestroy)(void* comm) = nullptr;
  int (*CommAbort)(void* comm) = nullptr;
  int (*CommGetAsyncError)(void* comm, int* result) = nullptr;
  int (*GroupStart)() = nullptr;
  int (*GroupEnd)() = nullptr;
  int (*Send)(const void* from, size_t count, int type, int peer, void* comm,
              void* stream) = nullptr;
  int (*Recv)(void* to, size_t count, int type, int peer, void* comm, void* stream) = nullptr;
  int (*AllReduce)(const void* from, void* to, size_t count, int type, int operation, void* comm,
                   void* stream) = nullptr;
  const char* (*GetErrorString)(int result) = nullptr;
  const char* (*GetLastError)(void* comm) = nullptr;

  std::string path;  // the file that was loaded
  int version = 0;   // 22907 for 2.29.7
};

// Loads libnccl.so.2 on the first call, from any thread. Throws Error if it cannot be loaded, or is
// older than 2.18, and tries again on the next call.
const NcclFunctions& Nccl();

// Does it for any file, and every time.
NcclFunctions LoadNccl(const std::string& library);

// Formats 22907 as "2.29.7".
std::string NcclVersionText(int version);

// Throws Error with NCCL's own text unless `result` is 0. `what` names the call; `comm` may be
// null.
void CheckNccl(int result, const char* what, void* comm);

}  // namespace pipewright
