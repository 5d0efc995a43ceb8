#include "sums.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/nccl/nccl_library.h"

namespace fake_nccl {

namespace {

using namespace pipewright;

// The upper half of a float.
struct Bfloat16 {
  uint16_t bits = 0;

  Bfloat16() = default;
  explicit Bfloat16(float value) {
    uint32_t all;
    std::memcpy(&all, &value, sizeof(all));
    const uint32_t rounding = 0x7fff + ((all >> 16) & 1);  // to the nearest, ties to even
    bits = static_cast<uint16_t>(value == value ? (all + rounding) >> 16 : 0x7fc0);
  }
  explicit operator float() const {
    const uint32_t all = uint32_t{bits} << 16;
    float value;
    std::memcpy(&value, &all, sizeof(value));
    return value;
  }
};

template <typename T>
T Apply(T a, T b, int operation) {
  switch (operation) {
    case kNcclProduct:
      return static_cast<T>(a * b);
    case kNcclMax:
      return std::max(a, b);
    case kNcclMin:
      return std::min(a, b);
    default:
      return static_cast<T>(a + b);
  }
}

// The types of 16 bits are computed as floats.
template <typename T>
T ApplyAny(T a, T b, int operation) {
  if constexpr (sizeof(T) == 2)
    return T(Apply(static_cast<float>(a), static_cast<float>(b), operation));
  else
    return Apply(a, b, operation);
}

template <typename T>
T DivideAny(T a, int ranks) {
  if constexpr (sizeof(T) == 2)
    return T(static_cast<float>(a) / static_cast<float>(ranks));
  else
    return static_cast<T>(a / static_cast<T>(ranks));
}

// Calls `act` with a null pointer to the C++ type.
template <typename Act>
void WithType(int type, Act act) {
  switch (type) {
    case kNcclInt8:
      return act(static_cast<int8_t*>(nullptr));
    case kNcclUint8:
      return act(static_cast<uint8_t*>(nullptr));
    case kNcclInt32:
      return act(static_cast<int32_t*>(nullptr));
    case kNcclUint32:
      return act(static_cast<uint32_t*>(nullptr));
    case kNcclInt64:
      return act(static_cast<int64_t*>(nullptr));
    case kNcclUint64:
      return act(static_cast<uint64_t*>(nullptr));
    case kNcclFloat16:
      return act(static_cast<_Float16*>(nullptr));
    case kNcclFloat32:
      return act(static_cast<float*>(nullptr));
    case kNcclFloat64:
      return act(static_cast<double*>(nullptr));
    case kNcclBfloat16:
      return act(static_cast<Bfloat16*>(nullptr));
  }
}

}  // namespace

size_t BytesOfType(int type) {
  size_t bytes = 0;
  WithType(type, [&]<typename T>(T*) { bytes = sizeof(T); });
  return bytes;
}

void Combine(void* into, const void* from, size_t count, int type, int operation) {
  WithType(type, [&]<typename T>(T*) {
    T* to = static_cast<T*>(into);
    const T* other = static_cast<const T*>(from);
    for (size_t i = 0; i < count; ++i) to[i] = ApplyAny(to[i], other[i], operation);
  });
}

void Divide(void* into, size_t count, int type, int ranks) {
  WithType(type, [&]<typename T>(T*) {
    T* to = static_cast<T*>(into);
    for (size_t i = 0; i < count; ++i) to[i] = DivideAny(to[i], ranks);
  });
}

}  // namespace fake_nccl
