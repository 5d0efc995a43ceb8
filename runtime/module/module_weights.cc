#include "runtime/module/module_weights.h"

#include "base/dtype.h"
#include "base/json.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"

namespace pipewright {

const TensorInfo& CheckedWeight(const SafetensorsFile& file, const WeightInfo& weight) {
  const TensorInfo& info = file.At(weight.name);
  if (DtypeOfSafetensors(info.dtype) != DtypeOf(weight.dtype) || info.shape != weight.shape)
    throw Error(file.path(),
                "\"" + weight.name + "\" is " + info.dtype + " " + ShapeText(info.shape) +
                    ", manifest.json says " + weight.dtype + " " + ShapeText(weight.shape),
                "replace it with a tensor of the same shape and type, or compile again");
  return info;
}

Error CopiesDiffer(const std::string& file, const std::string& weight) {
  return Error(file, Quote(weight) + " differs from its copy in another module's file",
               "they are copies of one weight, and must be identical");
}

at::Tensor MakeWeight(const WeightInfo& weight, const SafetensorsFile* file, at::Device device) {
  // Uses its own tensor, not the mapped file: training writes to it, and linear algebra kernels may
  // round differently for other memory alignments.
  const at::ScalarType type = DtypeOf(weight.dtype);
  at::Tensor tensor = file ? EmptyOn(device, weight.shape, type)
                           : at::zeros(weight.shape, at::device(device).dtype(type));
  if (file) ReadInto(*file, CheckedWeight(*file, weight), tensor);
  if (weight.kind == WeightKind::kParameter && weight.requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

}  // namespace pipewright
