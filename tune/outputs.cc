#include "tune/outputs.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/dtype.h"
#include "base/text.h"
#include "formats/weights/read_number.h"
#include "formats/weights/safetensors.h"

namespace pipewright {

namespace {

// What two tensors add up to.
struct Sums {
  double squares = 0, errors = 0;  // of the values, and of the differences
  uint64_t elements = 0, unequal = 0;
};

void AddPiece(std::string_view dtype, size_t unit, std::string_view a, std::string_view b,
              Sums& sums) {
  for (size_t at = 0; at + unit <= a.size(); at += unit) {
    ++sums.elements;
    double x = 0, y = 0;
    const bool number = ReadNumber(dtype, a.data() + at, x) && ReadNumber(dtype, b.data() + at, y);
    if (number && std::isfinite(x)) sums.squares += x * x;
    if (std::memcmp(a.data() + at, b.data() + at, unit) == 0 || (number && x == y)) continue;
    ++sums.unequal;
    if (number && !(std::isnan(x) && std::isnan(y))) sums.errors += (x - y) * (x - y);
  }
}

Sums SumsOf(const SafetensorsFile& file, const SafetensorsFile& other, const TensorInfo& info) {
  constexpr uint64_t kPiece = 1 << 20;  // bytes; a multiple of every element
  const TensorInfo& same = other.At(info.name);
  const auto unit = static_cast<size_t>(std::max(FindDtype(info.dtype)->bits / 8, 1));
  Sums sums;
  std::string a, b;
  for (uint64_t at = 0; at < info.end - info.begin; at += kPiece) {
    const uint64_t size = std::min(kPiece, info.end - info.begin - at);
    a.resize(size), b.resize(size);
    file.Read(info, at, a.data(), size);
    other.Read(same, at, b.data(), size);
    AddPiece(info.dtype, unit, a, b, sums);
  }
  return sums;
}

// Returns by which share the values differ: the norm of the differences of floating-point numbers,
// and the number of others.
double Difference(const std::string& dtype, const Sums& sums) {
  if (sums.unequal == 0) return 0;
  if (dtype.find('F') == std::string::npos)
    return static_cast<double>(sums.unequal) / static_cast<double>(sums.elements);
  return sums.errors == 0 ? 0 : std::sqrt(sums.errors / sums.squares);
}

// What rounding may change. Classes and signs of numbers that are nearly equal may flip.
double Rounding(const std::string& dtype, const Sums& sums) {
  if (dtype == "F64" || dtype == "F32") return 0.01;
  return std::max(0.1, 1.0 / static_cast<double>(std::max<uint64_t>(sums.elements, 1)));
}

}  // namespace

std::string WhyOutputsDiffer(const std::string& path, const std::string& other) {
  const SafetensorsFile file(path), before(other);
  for (const TensorInfo& info : file.header().tensors) {
    const TensorInfo& same = before.At(info.name);
    if (info.dtype != same.dtype || info.shape != same.shape)
      return Quote(info.name) + " is " + info.dtype + " " + ShapeText(info.shape) + ", not " +
             same.dtype + " " + ShapeText(same.shape);
    const Sums sums = SumsOf(file, before, info);
    const double difference = Difference(info.dtype, sums);
    if (difference <= Rounding(info.dtype, sums)) continue;
    char text[64] = " has other values";
    if (std::isfinite(difference))
      std::snprintf(text, sizeof text, " differs by %.0f %%", std::max(1.0, 100 * difference));
    return Quote(info.name) + text;
  }
  return "";
}

}  // namespace pipewright
