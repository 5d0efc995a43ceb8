#include "tensors/tensor_file.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "tensors/dtype.h"
#include "tensors/page_memory.h"

namespace pipewright {

TensorFile::TensorFile(const std::string& path) : checkpoint_(OpenCheckpoint(path)) {
  for (size_t i = 0; i < checkpoint_.tensors.size(); ++i) {
    StoredTensor& tensor = checkpoint_.tensors[i];
    index_.emplace(tensor.name, i);
    if (tensor.dtype != "F4" || tensor.shape.empty()) continue;
    if (tensor.shape.back() % 2)
      throw Error(path, Quote(tensor.name) + ": an odd number of 4-bit numbers in a row");
    tensor.shape.back() /= 2;
  }
}

std::vector<std::string> TensorFile::Names() const {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : checkpoint_.tensors) names.push_back(tensor.name);
  return names;
}

const StoredTensor& TensorFile::At(const std::string& name) const {
  auto found = index_.find(name);
  if (found == index_.end())
    throw Error(path(), "no tensor " + Quote(name) + Suggest(name, Names()));
  return checkpoint_.tensors[found->second];
}

at::ScalarType TensorFile::DtypeAt(const std::string& name) const {
  return DtypeOfSafetensors(At(name).dtype);
}

void TensorFile::Stream(const std::string& name, const ByteSink& sink) const {
  if (At(name).bytes > 0) ReadTensor(checkpoint_, At(name), sink);
}

at::Tensor TensorFile::Get(const std::string& name) const {
  const StoredTensor& from = At(name);
  at::Tensor tensor = EmptyInPages(from.shape, DtypeAt(name));
  char* to = static_cast<char*>(tensor.data_ptr());
  if (tensor.numel() > 0 && from.strides.empty())
    checkpoint_.files[static_cast<size_t>(from.file)]->Read(from.offset, to, from.bytes);
  else if (tensor.numel() > 0)
    ReadTensor(checkpoint_, from,
               [&](std::string_view piece) { to = std::copy(piece.begin(), piece.end(), to); });
  return tensor;
}

at::Tensor TensorFile::GetSlice(const std::string& name,
                                const std::vector<SliceRange>& ranges) const {
  const StoredTensor& from = At(name);
  const size_t dims = from.shape.size();
  if (ranges.size() > dims)
    throw Error(Quote(name), "has " + std::to_string(dims) + " dimensions, " +
                                 std::to_string(ranges.size()) + " ranges were given");
  std::vector<int64_t> begin(dims, 0), sizes = from.shape, strides = from.strides;
  for (size_t d = 0; d < ranges.size(); ++d) {
    const int64_t size = from.shape[d];
    auto bound = [&](int64_t at) {
      if (at < -size || at > size)
        throw Error(Quote(name), "index " + std::to_string(at) +
                                     " out of bounds for tensor dimension #" + std::to_string(d) +
                                     " of size " + std::to_string(size));
      return at < 0 ? at + size : at;
    };
    begin[d] = bound(ranges[d].begin);
    sizes[d] = std::max<int64_t>(0, bound(ranges[d].end.value_or(size)) - begin[d]);
  }
  if (strides.empty()) {
    strides.assign(dims, 1);
    for (size_t d = dims; d-- > 1;) strides[d - 1] = strides[d] * from.shape[d];
  }
  at::Tensor tensor = EmptyInPages(sizes, DtypeAt(name));
  if (tensor.numel() == 0) return tensor;
  // Counts the elements of one contiguous stretch: the innermost dimensions that are taken whole
  // and are in order, and the selected range of the next one.
  int64_t run = 1;
  size_t outer = dims;
  while (outer > 0 && strides[outer - 1] == run) {
    run *= sizes[--outer];
    if (sizes[outer] != from.shape[outer]) break;
  }
  const uint64_t element = tensor.element_size();
  const MappedFile& file = *checkpoint_.files[static_cast<size_t>(from.file)];
  std::vector<int64_t> index(outer, 0);
  char* to = static_cast<char*>(tensor.data_ptr());
  for (int64_t pieces = tensor.numel() / run; pieces > 0; --pieces) {
    int64_t first = 0;
    for (size_t d = 0; d < dims; ++d) first += (begin[d] + (d < outer ? index[d] : 0)) * strides[d];
    file.Read(from.offset + static_cast<uint64_t>(first) * element, to,
              static_cast<uint64_t>(run) * element);
    to += static_cast<uint64_t>(run) * element;
    for (size_t d = outer; d-- > 0;) {
      if (++index[d] < sizes[d]) break;
      index[d] = 0;
    }
  }
  return tensor;
}

}  // namespace pipewright
