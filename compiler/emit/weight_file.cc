#include "compiler/emit/weight_file.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/dtype.h"
#include "base/error.h"

namespace pipewright {

namespace {

constexpr uint64_t kPiece = 1 << 20;  // bytes

bool IsContiguous(const Weight& weight) {
  int64_t expected = 1;
  for (size_t d = weight.shape.size(); d-- > 0;) {
    if (weight.shape[d] != 1 && weight.strides[d] != expected) return false;
    expected *= weight.shape[d];
  }
  return true;
}

// Passes `count` elements at `bytes` to `sink`, in the weight's dtype.
void Hand(const Weight& weight, char* bytes, uint64_t count, const ByteSink& sink) {
  at::ScalarType stored = weight.stored.value_or(weight.dtype);
  if (stored == weight.dtype)
    return sink(std::string_view(bytes, count * c10::elementSize(stored)));
  at::Tensor cast =
      at::from_blob(bytes, {static_cast<int64_t>(count)}, at::TensorOptions().dtype(stored))
          .to(weight.dtype);
  sink(std::string_view(static_cast<const char*>(cast.data_ptr()), cast.nbytes()));
}

}  // namespace

WeightReader::WeightReader(const Model& model) {
  for (const std::string& file : model.files) files_.push_back(std::make_unique<MappedFile>(file));
}

void WeightReader::Read(const Weight& weight, const ByteSink& sink) const {
  uint64_t size = c10::elementSize(weight.stored.value_or(weight.dtype)), count = 1;
  for (int64_t n : weight.shape) count *= static_cast<uint64_t>(n);
  if (count == 0) return;
  if (weight.data.defined()) {
    at::Tensor dense = weight.data.detach().contiguous();
    return Hand(weight, static_cast<char*>(dense.data_ptr()), count, sink);
  }
  const MappedFile& file = *files_.at(static_cast<size_t>(weight.file));
  if (IsContiguous(weight)) {
    uint64_t at = weight.file_offset + static_cast<uint64_t>(weight.storage_offset) * size;
    std::string buffer(std::min(kPiece / size, count) * size, '\0');
    while (count) {
      uint64_t n = std::min<uint64_t>(count, buffer.size() / size);
      file.Read(at, buffer.data(), n * size);
      Hand(weight, buffer.data(), n, sink);
      at += n * size, count -= n;
    }
    return;
  }
  // Reads only the part of the storage that the weight spans.
  uint64_t first = static_cast<uint64_t>(weight.storage_offset) * size, last = first + size;
  for (size_t d = 0; d < weight.shape.size(); ++d)
    last += static_cast<uint64_t>(weight.shape[d] - 1) * static_cast<uint64_t>(weight.strides[d]) *
            size;
  std::string storage(last - first, '\0');
  file.Read(weight.file_offset + first, storage.data(), storage.size());
  at::Tensor dense = at::from_blob(storage.data(), weight.shape, weight.strides,
                                   at::TensorOptions().dtype(weight.stored.value_or(weight.dtype)))
                         .contiguous();
  Hand(weight, static_cast<char*>(dense.data_ptr()), count, sink);
}

void WriteWeights(const Model& model, const ModuleBody& body, const WeightReader& reader,
                  const std::string& path) {
  std::vector<TensorToWrite> tensors;
  for (const auto& [index, name] : body.weights) {
    const Weight& weight = model.weights[index];
    TensorToWrite tensor;
    tensor.name = name;
    tensor.shape = weight.shape;
    const Dtype* dtype = FindDtype(DtypeText(weight.dtype));
    if (!dtype)
      throw Error(model.file + ": weight \"" + name + "\"" +
                      UserText(body, model.weight_input(index)),
                  DtypeText(weight.dtype) + " cannot be written to safetensors",
                  "keep it in another dtype, and convert it where the model uses it");
    tensor.dtype = dtype->name;
    tensor.produce = [&reader, &weight](const ByteSink& sink) { reader.Read(weight, sink); };
    tensors.push_back(std::move(tensor));
  }
  WriteSafetensors(path, std::move(tensors));
}

}  // namespace pipewright
