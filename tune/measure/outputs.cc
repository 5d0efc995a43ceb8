#include "tune/measure/outputs.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/dtype.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/weights/diff.h"
#include "formats/weights/read_number.h"

namespace pipewright {

namespace {

int64_t Elements(const StoredTensor& tensor) {
  int64_t count = 1;
  for (int64_t size : tensor.shape) count *= size;
  return count;
}

// Returns the sum of the squares of a tensor's finite numbers. Leaves out the largest if it is
// there several times, as a mask such as -1e9 is, which would hide differences of all others.
double Squares(const Checkpoint& file, const StoredTensor& tensor) {
  const auto unit = static_cast<size_t>(FindDtype(tensor.dtype)->bits / 8);
  double others = 0, largest = 0, times = 0;
  ReadTensor(file, tensor, [&](std::string_view piece) {
    double number = 0;
    for (size_t at = 0; at + unit <= piece.size(); at += unit) {
      if (!ReadNumber(tensor.dtype, piece.data() + at, number) || !std::isfinite(number)) continue;
      const double size = std::abs(number);
      if (size > largest) {
        others += times * largest * largest;
        largest = size, times = 0;
      }
      if (size == largest)
        ++times;
      else
        others += size * size;
    }
  });
  constexpr double kMask = 1e4;
  const bool masks = largest >= kMask && times > 1 && others > 0;
  return masks ? others : others + times * largest * largest;
}

bool IsFloat(const StoredTensor& tensor) { return tensor.dtype.find('F') != std::string::npos; }

// Returns by which share the values differ: the norm of the differences of floating-point numbers,
// and the number of others. NaN if a number has become NaN, or was.
double Share(const TensorDifference& difference, const Checkpoint& file,
             const StoredTensor& tensor) {
  if (!IsFloat(tensor) || difference.largest < 0)
    return static_cast<double>(difference.elements) / static_cast<double>(Elements(tensor));
  if (!(difference.largest > 0)) return difference.largest;
  return std::sqrt(difference.squares / Squares(file, tensor));
}

// Returns the share that rounding may change. Classes and signs of nearly equal numbers may flip.
double LargestShareOfRounding(const StoredTensor& tensor, bool narrow) {
  const double flips = 1.0 / static_cast<double>(Elements(tensor));
  if (!IsFloat(tensor)) return std::max(narrow ? 0.05 : 0.001, flips);
  const bool wide = tensor.dtype == "F64" || tensor.dtype == "F32";
  return narrow || !wide ? 0.1 : 0.001;
}

}  // namespace

double DifferenceOf(const std::string& path, const std::string& other) {
  const Checkpoint file = OpenCheckpoint(path), before = OpenCheckpoint(other);
  double differences = 0, squares = 0;
  for (const TensorDifference& difference : Diff(file, before).different)
    differences += std::isnan(difference.largest) ? difference.largest : difference.squares;
  for (const StoredTensor& tensor : before.tensors)
    if (IsFloat(tensor)) squares += Squares(before, tensor);
  return differences == 0 ? 0 : std::sqrt(differences / squares);
}

std::string WhyOutputsDiffer(const std::string& path, const std::string& other, bool narrow) {
  const Checkpoint file = OpenCheckpoint(path), before = OpenCheckpoint(other);
  for (const TensorDifference& difference : Diff(file, before).different) {
    std::string text = Quote(difference.name) + " has other values";
    if (difference.elements == 0)
      return Quote(difference.name) + " differs in " + difference.reason;
    const StoredTensor& tensor = *file.Find(difference.name);
    const double share = Share(difference, file, tensor);
    if (share <= LargestShareOfRounding(tensor, narrow)) continue;
    if (std::isfinite(share)) {
      char percent[40];
      std::snprintf(percent, sizeof percent, " differs by %.3g %%", 100 * share);
      text = Quote(difference.name) + percent;
    }
    return text;
  }
  return "";
}

}  // namespace pipewright
