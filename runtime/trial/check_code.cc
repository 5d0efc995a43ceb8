#include "runtime/trial/check_code.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/symbol.h"
#include "formats/package/package_files.h"
#include "formats/weights/safetensors.h"
#include "runtime/module/module_code.h"
#include "runtime/trial/shapes.h"
#include "tensors/dtype.h"

namespace pipewright {

// Returns the specs of the inputs as the model was exported, or else of some sizes that it takes;
// none if neither says them.
static std::vector<TensorSpec> Inputs(const std::string& package, const Manifest& manifest) {
  const std::string samples = package + "/samples.safetensors";
  std::unique_ptr<SafetensorsFile> file;
  if (std::filesystem::exists(samples)) file = std::make_unique<SafetensorsFile>(samples);
  std::map<std::string, int64_t> symbols;
  for (const auto& [symbol, range] : manifest.symbols)
    symbols[symbol] = std::clamp<int64_t>(2, range.first, range.second);
  std::vector<TensorSpec> specs;
  for (int id : manifest.inputs) {
    const ValueInfo& value = manifest.values[id];
    const TensorInfo* sample = file ? file->Find(value.name) : nullptr;
    if (sample) {
      specs.push_back({DtypeOfSafetensors(sample->dtype), sample->shape, true});
    } else if (value.kind != ValueKind::kTensor) {
      specs.push_back({value.kind == ValueKind::kInt     ? at::kLong
                       : value.kind == ValueKind::kFloat ? at::kDouble
                                                         : at::kBool,
                       {},
                       true});
    } else if (value.dtype.empty()) {
      return {};
    } else {
      specs.push_back({DtypeOf(value.dtype), {}, true});
      try {
        for (const std::string& size : value.shape)
          specs.back().sizes.push_back(EvaluateSize(size, symbols));
      } catch (const Error&) {
        return {};
      }
    }
  }
  return specs;
}

std::vector<std::string> CheckCode(const std::string& package, const Manifest& manifest) {
  bool edited = false;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    if (!IsEdited(package, manifest.modules[m])) continue;
    CompileModule(package, manifest, static_cast<int>(m));
    edited = true;
  }
  if (!edited) return {};
  const std::vector<TensorSpec> inputs = Inputs(package, manifest);
  if (inputs.empty()) return {};
  return ChangedOutputs(package, manifest, inputs);
}

}  // namespace pipewright
