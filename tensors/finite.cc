#include "tensors/finite.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace pipewright {

// Returns the numbers of `count` with the lowest bit of the exponent added to the exponent, or-ed.
// This carries into the sign if all bits of an exponent are set, and only then.
template <typename Bits>
static inline Bits Carried(const char* data, size_t count, Bits exponent) {
  const auto lowest = static_cast<Bits>(exponent & (~exponent + 1));
  Bits found = 0;
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    found = static_cast<Bits>(found | static_cast<Bits>((bits & exponent) + lowest));
  }
  return found;
}

// Returns true if no number has all bits of its exponent set, as infinities and nans have.
template <typename Bits>
static bool AllBelow(std::string_view bytes, Bits exponent) {
  constexpr auto kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  constexpr size_t kBlock = 4096;  // a constant, without which -O2 does not vectorize the loop
  const size_t count = bytes.size() / sizeof(Bits);
  const char* data = bytes.data();
  size_t i = 0;
  for (; i + kBlock <= count; i += kBlock)
    if (Carried<Bits>(data + i * sizeof(Bits), kBlock, exponent) & kSign) return false;
  return !(Carried<Bits>(data + i * sizeof(Bits), count - i, exponent) & kSign);
}

bool AllFinite(std::string_view bytes, at::ScalarType type) {
  switch (type) {
    case at::kFloat:
    case at::kComplexFloat: return AllBelow<uint32_t>(bytes, 0x7f800000u);
    case at::kDouble:
    case at::kComplexDouble: return AllBelow<uint64_t>(bytes, 0x7ff0000000000000ull);
    case at::kHalf:
    case at::kComplexHalf: return AllBelow<uint16_t>(bytes, 0x7c00u);
    case at::kBFloat16: return AllBelow<uint16_t>(bytes, 0x7f80u);
    default: return true;
  }
}

bool AllFinite(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  const int64_t size = static_cast<int64_t>(c10::elementSize(type));
  const bool has_infinities = at::isComplexType(type) || (at::isFloatingType(type) && size > 1);
  if (!has_infinities || tensor.numel() == 0) return true;
  if (!tensor.is_cpu() || !tensor.is_non_overlapping_and_dense())
    return at::isfinite(tensor).all().item<bool>();
  const char* data = static_cast<const char*>(tensor.const_data_ptr());
  std::atomic<bool> finite{true};
  at::parallel_for(0, tensor.numel(), int64_t{1} << 18, [&](int64_t begin, int64_t end) {
    const std::string_view part(data + begin * size, static_cast<size_t>((end - begin) * size));
    if (!AllFinite(part, type)) finite = false;
  });
  return finite;
}

std::string NotFinite(const at::Tensor& tensor) {
  if (AllFinite(tensor)) return "";
  at::Tensor parts = tensor.detach().cpu();
  if (parts.is_complex()) parts = at::view_as_real(parts.resolve_conj());
  if (at::isnan(parts).any().item<bool>()) return "nan";
  return at::isposinf(parts).any().item<bool>() ? "inf" : "-inf";
}

}  // namespace pipewright
