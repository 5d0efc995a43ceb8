#include "runtime/nccl/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "base/error.h"

namespace pipewright {

namespace {

constexpr char kLibrary[] = "libnccl.so.2";
constexpr int kOldest = 21800;  // the first with all fields of NcclConfig

void* Open(const std::string& library) {
  // If LibTorch has loaded the library, its name finds the same copy.
  if (void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  const char* reason = dlerror();
  const char* folders = std::getenv("LD_LIBRARY_PATH");
  throw Error(library,
              std::string("NCCL cannot be loaded: ") + (reason ? reason : "no reason given") +
                  ". Searched: the libraries of this process, LD_LIBRARY_PATH (" +
                  (folders && *folders ? folders : "not set") + "), and the system's folders",
              "install a PyTorch wheel for CUDA, which comes with the wheel nvidia-nccl, or add "
              "the folder of " +
                  std::string(kLibrary) + " to LD_LIBRARY_PATH");
}

template <typename Function>
void Find(void* library, const std::string& path, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (!function)
    throw Error(path, std::string("this library of NCCL has no function ") + name,
                "install NCCL " + NcclVersionText(kOldest) + " or later");
}

std::string PathOf(void* function, const std::string& otherwise) {
  Dl_info info;
  return dladdr(function, &info) && info.dli_fname ? info.dli_fname : otherwise;
}

}  // namespace

std::string NcclVersionText(int version) {
  // Versions before 2.9 have two digits fewer: 2708 is 2.7.8.
  const int major = version < 10000 ? 1000 : 10000;
  return std::to_string(version / major) + "." + std::to_string(version % major / 100) + "." +
         std::to_string(version % 100);
}

NcclFunctions LoadNccl(const std::string& library) {
  // It is never closed, because GPUs may still run its code.
  void* handle = Open(library);
  NcclFunctions nccl;
  Find(handle, library, "ncclGetVersion", nccl.GetVersion);
  nccl.path = PathOf(reinterpret_cast<void*>(nccl.GetVersion), library);
  nccl.GetVersion(&nccl.version);
  if (nccl.version < kOldest)
    throw Error(nccl.path,
                "this is NCCL " + NcclVersionText(nccl.version) + ", expected " +
                    NcclVersionText(kOldest) + " or later",
                "install a newer nvidia-nccl wheel, or put the folder of a newer " + library +
                    " first in LD_LIBRARY_PATH");
  Find(handle, nccl.path, "ncclGetUniqueId", nccl.GetUniqueId);
  Find(handle, nccl.path, "ncclCommInitRankConfig", nccl.CommInitRankConfig);
  Find(handle, nccl.path, "ncclCommFinalize", nccl.CommFinalize);
  Find(handle, nccl.path, "ncclCommDestroy", nccl.CommDestroy);
  Find(handle, nccl.path, "ncclCommAbort", nccl.CommAbort);
  Find(handle, nccl.path, "ncclCommGetAsyncError", nccl.CommGetAsyncError);
  Find(handle, nccl.path, "ncclGroupStart", nccl.GroupStart);
  Find(handle, nccl.path, "ncclGroupEnd", nccl.GroupEnd);
  Find(handle, nccl.path, "ncclSend", nccl.Send);
  Find(handle, nccl.path, "ncclRecv", nccl.Recv);
  Find(handle, nccl.path, "ncclAllReduce", nccl.AllReduce);
  Find(handle, nccl.path, "ncclGetErrorString", nccl.GetErrorString);
  Find(handle, nccl.path, "ncclGetLastError", nccl.GetLastError);
  return nccl;
}

const NcclFunctions& Nccl() {
  const char* named = std::getenv("PIPEWRIGHT_NCCL");
  static const NcclFunctions functions = LoadNccl(named && *named ? named : kLibrary);
  return functions;
}

void CheckNccl(int result, const char* what, void* comm) {
  if (result == kNcclSuccess) return;
  const NcclFunctions& nccl = Nccl();
  const char* name = nccl.GetErrorString(result);
  const char* detail = nccl.GetLastError(comm);
  throw Error(what,
              std::string("NCCL ") + NcclVersionText(nccl.version) + " failed with result " +
                  std::to_string(result) + ", " + (name ? name : "unknown") +
                  (detail && *detail ? std::string(": ") + detail : ""),
              "set NCCL_DEBUG=INFO for NCCL's own log");
}

}  // namespace pipewright
