#include "formats/weights/read_number.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace pipewright {

template <typename T>
static T Load(const char* bytes) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

static double HalfToDouble(uint16_t bits) {
  int exponent = bits >> 10 & 31;
  double fraction = bits & 1023;
  double size = exponent == 31  ? (fraction != 0 ? std::nan("") : INFINITY)
                : exponent == 0 ? std::ldexp(fraction, -24)
                                : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

bool ReadNumber(std::string_view dtype, const char* bytes, double& number) {
  if (dtype == "F32")
    number = Load<float>(bytes);
  else if (dtype == "F64")
    number = Load<double>(bytes);
  else if (dtype == "F16")
    number = HalfToDouble(Load<uint16_t>(bytes));
  else if (dtype == "BF16")
    number = std::bit_cast<float>(uint32_t{Load<uint16_t>(bytes)} << 16);
  else if (dtype == "I64")
    number = static_cast<double>(Load<int64_t>(bytes));
  else if (dtype == "U64")
    number = static_cast<double>(Load<uint64_t>(bytes));
  else if (dtype == "I32")
    number = Load<int32_t>(bytes);
  else if (dtype == "U32")
    number = Load<uint32_t>(bytes);
  else if (dtype == "I16")
    number = Load<int16_t>(bytes);
  else if (dtype == "U16")
    number = Load<uint16_t>(bytes);
  else if (dtype == "I8")
    number = Load<int8_t>(bytes);
  else if (dtype == "U8")
    number = Load<uint8_t>(bytes);
  else
    return false;
  return true;
}

}  // namespace pipewright
