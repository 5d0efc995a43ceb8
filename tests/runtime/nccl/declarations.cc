// Compares runtime/nccl/nccl_library.h with NVIDIA's header. It is compiled where nccl.h exists,
// and never linked: a declaration that differs does not compile.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "runtime/nccl/nccl_library.h"

namespace pipewright {

// How an argument is passed: the ABI does not distinguish pointers, nor enumerators from int.
template <typename T>
struct Passed {
  using type = T;
};
template <typename T>
struct Passed<T*> {
  using type = std::conditional_t<std::is_same_v<std::remove_const_t<T>, char>, char*, void*>;
};
template <typename T>
  requires std::is_enum_v<T>
struct Passed<T> {
  using type = int;
};
template <>
struct Passed<ncclUniqueId> {
  using type = NcclId;
};
template <typename Result, typename... Arguments>
struct Passed<Result (*)(Arguments...)> {
  using type = typename Passed<Result>::type (*)(typename Passed<Arguments>::type...);
};

#define SAME(name)                                                           \
  static_assert(std::is_same_v<Passed<decltype(&nccl##name)>::type,          \
                               Passed<decltype(NcclFunctions::name)>::type>, \
                "NcclFunctions::" #name " differs from nccl.h: copy it from there")
SAME(GetVersion);
SAME(GetUniqueId);
SAME(CommInitRankConfig);
SAME(CommFinalize);
SAME(CommDestroy);
SAME(CommAbort);
SAME(CommGetAsyncError);
SAME(GroupStart);
SAME(GroupEnd);
SAME(Send);
SAME(Recv);
SAME(AllReduce);
SAME(GetErrorString);
SAME(GetLastError);

#define FIELD(ours, theirs)                                                     \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs) && \
                    sizeof(NcclConfig::ours) == sizeof(ncclConfig_t::theirs),   \
                "NcclConfig::" #ours " differs from nccl.h")
FIELD(size, size);
FIELD(magic, magic);
FIELD(version, version);
FIELD(blocking, blocking);
FIELD(cga_cluster_size, cgaClusterSize);
FIELD(min_ctas, minCTAs);
FIELD(max_ctas, maxCTAs);
FIELD(net_name, netName);
FIELD(split_share, splitShare);
static_assert(NcclConfig::kDefault == NCCL_CONFIG_UNDEF_INT);
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(NcclConfig{}.magic == kTheirs.magic);
static_assert(NcclConfig{}.size <= sizeof(ncclConfig_t));
static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));

static_assert(kNcclSuccess == int{ncclSuccess} && kNcclRemoteError == int{ncclRemoteError} &&
              kNcclInProgress == int{ncclInProgress});
static_assert(kNcclUint8 == int{ncclUint8} && kNcclFloat16 == int{ncclFloat16} &&
              kNcclFloat32 == int{ncclFloat32} && kNcclFloat64 == int{ncclFloat64} &&
              kNcclBfloat16 == int{ncclBfloat16} && kNcclSum == int{ncclSum});

}  // namespace pipewright
