#include "compiler/emit/samples.h"

#include <torch/csrc/jit/serialization/pickle.h>

#include "base/dtype.h"
#include "formats/torch/archive.h"
#include "formats/weights/safetensors.h"

namespace pipewright {

static const char kRecord[] = "data/sample_inputs/model.pt";

// Returns the tensors and numbers in nested tuples, lists and dicts, in order.
static std::vector<c10::IValue> LeavesOf(const c10::IValue& value) {
  std::vector<c10::IValue> leaves;
  std::vector<c10::IValue> stack = {value};
  while (!stack.empty()) {
    c10::IValue top = stack.back();
    stack.pop_back();
    std::vector<c10::IValue> items;
    if (top.isTensor() || top.isScalar()) leaves.push_back(top);
    if (top.isTuple()) items = top.toTupleRef().elements().vec();
    if (top.isList()) items = top.toListRef().vec();
    if (top.isGenericDict())
      for (const auto& item : top.toGenericDict()) items.push_back(item.value());
    stack.insert(stack.end(), items.rbegin(), items.rend());
  }
  return leaves;
}

// Converts a leaf to the dtype that the model takes; --dtype may have changed it since the export.
static at::Tensor AsTensor(const c10::IValue& leaf, const ValueInfo& value) {
  // Numbers travel as int64, float64 or bool.
  if (!leaf.isTensor()) return at::scalar_tensor(leaf.toScalar(), leaf.toScalar().type());
  at::Tensor tensor = leaf.toTensor().detach();
  if (!value.dtype.empty() && tensor.is_floating_point())
    if (at::ScalarType wanted = ScalarTypeOf(value.dtype); at::isFloatingType(wanted))
      tensor = tensor.to(wanted);
  return tensor.contiguous();
}

// Returns the leaves of the example that the model was traced or exported with; empty if there is
// none.
static std::vector<c10::IValue> ExampleOf(const Model& model) {
  if (!model.example.empty()) return {model.example.begin(), model.example.end()};
  try {
    Archive archive(model.file);
    if (!archive.Has(kRecord)) return {};
    std::string bytes = archive.Read(kRecord);
    return LeavesOf(torch::jit::pickle_load(std::vector<char>(bytes.begin(), bytes.end())));
  } catch (const std::exception&) {
    return {};  // the example has classes that are not known here
  }
}

void WriteSamples(const Model& model, const Manifest& manifest, const std::string& path) {
  std::vector<c10::IValue> leaves = ExampleOf(model);
  // Only the example has numbers that the export made part of the model.
  if (leaves.size() != manifest.inputs.size())
    std::erase_if(leaves, [](const c10::IValue& leaf) { return !leaf.isTensor(); });
  if (leaves.size() != manifest.inputs.size()) return;
  std::vector<at::Tensor> tensors;
  std::vector<TensorToWrite> out;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const ValueInfo& value = manifest.values[manifest.inputs[i]];
    if (leaves[i].isTensor() != (value.kind == ValueKind::kTensor)) return;
    tensors.push_back(AsTensor(leaves[i], value));
    const at::Tensor& tensor = tensors.back();
    const Dtype* dtype = FindDtype(DtypeText(tensor.scalar_type()));
    // TorchScript, and so a traced model, does not record sizes.
    const bool fits =
        value.dtype.empty() || static_cast<size_t>(tensor.dim()) == value.shape.size();
    if (!dtype || !tensor.device().is_cpu() || !fits) return;
    out.push_back({value.name,
                   dtype->name,
                   tensor.sizes().vec(),
                   {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}});
  }
  if (!out.empty()) WriteSafetensors(path, std::move(out));
}

}  // namespace pipewright
