#include "formats/weights/diff.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/dtype.h"
#include "base/json.h"
#include "formats/weights/read_number.h"

namespace pipewright {

static std::map<std::string, const StoredTensor*> ByName(const Checkpoint& checkpoint) {
  std::map<std::string, const StoredTensor*> tensors;
  for (const StoredTensor& tensor : checkpoint.tensors) tensors[tensor.name] = &tensor;
  return tensors;
}

// Adds the differences between two runs of elements to `difference`.
static void ComparePiece(const std::string& dtype, size_t unit, std::string_view a,
                         std::string_view b, TensorDifference& difference) {
  if (a == b) return;
  for (size_t at = 0; at + unit <= a.size(); at += unit) {
    if (std::memcmp(a.data() + at, b.data() + at, unit) == 0) continue;
    ++difference.elements;
    double x, y;
    if (std::isnan(difference.largest) || !ReadNumber(dtype, a.data() + at, x)) continue;
    ReadNumber(dtype, b.data() + at, y);
    double apart = x == y ? 0 : std::abs(x - y);
    difference.largest = std::isnan(apart) ? apart : std::max(difference.largest, apart);
    difference.squares += apart * apart;
  }
}

static void CompareValues(const Checkpoint& first, const StoredTensor& a, const Checkpoint& second,
                          const StoredTensor& b, TensorDifference& difference) {
  // A sub-byte type is compared by bytes.
  size_t unit = static_cast<size_t>(std::max(FindDtype(a.dtype)->bits / 8, 1));
  // Reads one side in pieces and, if the other is contiguous, that one too, so that no mapping
  // grows.
  std::string other;
  uint64_t at = 0;
  if (b.strides.empty()) {
    const MappedFile& file = *second.files[static_cast<size_t>(b.file)];
    ReadTensor(first, a, [&](std::string_view piece) {
      other.resize(piece.size());
      file.Read(b.offset + at, other.data(), piece.size());
      ComparePiece(a.dtype, unit, piece, other, difference);
      at += piece.size();
    });
  } else if (a.strides.empty()) {
    CompareValues(second, b, first, a, difference);
  } else {  // both have strides: gathers one whole tensor
    ReadTensor(second, b, [&](std::string_view piece) { other += piece; });
    ReadTensor(first, a, [&](std::string_view piece) {
      ComparePiece(a.dtype, unit, piece, std::string_view(other).substr(at, piece.size()),
                   difference);
      at += piece.size();
    });
  }
}

bool SameBits(const Checkpoint& checkpoint, const StoredTensor& a, const StoredTensor& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return false;
  if (a.file == b.file && a.offset == b.offset && a.strides == b.strides) return true;
  TensorDifference difference;
  CompareValues(checkpoint, a, checkpoint, b, difference);
  return difference.elements == 0;
}

Error TiedNamesDiffer(const std::string& path, const std::string& a, const std::string& b) {
  return Error(path,
               Quote(a) + " and " + Quote(b) + " differ, but the model ties them into one weight",
               "leave one of them out, or untie them in the model and compile it again");
}

// Returns the tensor of `checkpoint` for `name`. A file keeps one of several tied names, so the
// tensor may have another name: the one in the file's metadata, or one that shares memory with
// `name` in `other`.
static const StoredTensor* Meant(const Checkpoint& checkpoint,
                                 const std::map<std::string, const StoredTensor*>& by_name,
                                 const std::string& name, const Checkpoint& other) {
  auto find = [&](const std::string& kept) {
    auto found = by_name.find(kept);
    return found == by_name.end() ? nullptr : found->second;
  };
  if (const StoredTensor* tensor = find(name)) return tensor;
  const StoredTensor* view = other.Find(name);
  if (!view) return nullptr;
  if (auto kept = checkpoint.metadata.find(name); kept != checkpoint.metadata.end())
    if (const StoredTensor* tensor = find(kept->second); tensor && tensor->shape == view->shape)
      return tensor;  // with another shape, `name` was only a part of it
  if (view->storage.empty()) return nullptr;
  for (const StoredTensor& tied : other.tensors)
    if (tied.storage == view->storage && tied.offset == view->offset && tied.dtype == view->dtype &&
        tied.shape == view->shape && tied.strides == view->strides)
      if (const StoredTensor* tensor = find(tied.name)) return tensor;
  return nullptr;
}

CheckpointDifference Diff(const Checkpoint& first, const Checkpoint& second, uint64_t most_bytes) {
  for (const Checkpoint* checkpoint : {&first, &second}) CheckRepeats(*checkpoint, most_bytes);
  const auto ours = ByName(first), theirs = ByName(second);
  std::set<std::string> names;
  for (const auto* tensors : {&ours, &theirs})
    for (const auto& [name, tensor] : *tensors) names.insert(name);
  CheckpointDifference result;
  for (const std::string& name : names) {
    const StoredTensor* a = Meant(first, ours, name, second);
    const StoredTensor* b = Meant(second, theirs, name, first);
    if (!a) result.only_in_second.push_back(name);
    if (!b) result.only_in_first.push_back(name);
    if (!a || !b) continue;
    TensorDifference difference{name, ""};
    if (a->dtype != b->dtype)
      difference.reason = "dtype " + a->dtype + " and " + b->dtype;
    else if (a->shape != b->shape)
      difference.reason = "shape " + ShapeText(a->shape) + " and " + ShapeText(b->shape);
    else
      CompareValues(first, *a, second, *b, difference);
    if (difference.elements) difference.reason = "values";
    if (!difference.reason.empty()) result.different.push_back(difference);
  }
  return result;
}

}  // namespace pipewright
