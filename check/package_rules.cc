// Rules of `check` about a package: its files, edited code, conf.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/files/missing_file.h"
#include "base/text.h"
#include "check/rules.h"
#include "formats/package/edited_lines.h"
#include "formats/weights/checkpoint.h"
#include "formats/weights/safetensors.h"
#include "runtime/module/module_code.h"
#include "runtime/module/module_weights.h"
#include "runtime/module/stored_weights.h"
#include "runtime/trial/check_code.h"
#include "runtime/weights.h"

namespace pipewright {

std::optional<Manifest> CheckPackage(const CheckRequest& request, CheckResult& result) {
  std::optional<Manifest> manifest;
  Passes(result, "package", [&] { manifest = ReadManifest(request.package); });
  return manifest;
}

void CheckWeights(const CheckRequest& request, const Manifest& manifest, CheckResult& result) {
  // With a file of weights, only constants and non-persistent buffers are read from the package.
  auto is_read = [&](const WeightInfo& weight) {
    return request.weights.empty() || weight.kind == WeightKind::kConstant || !weight.persistent;
  };
  for (const ModuleInfo& module : manifest.modules) {
    if (std::none_of(module.held.begin(), module.held.end(), is_read)) continue;
    std::optional<SafetensorsFile> file;
    const bool read = Passes(result, "weights", [&] {
      file.emplace(PackageFile(request.package, module.weights));
    });
    for (const WeightInfo& weight : module.held)
      if (read && is_read(weight))
        Passes(result, "weights", [&] { CheckedWeight(*file, weight); });
  }
  if (request.weights.empty()) return;
  std::optional<Checkpoint> checkpoint;
  if (!Passes(result, "weights", [&] { checkpoint = OpenCheckpoint(request.weights); })) return;
  for (const auto& [name, at] : ParametersAndBuffers(manifest)) {
    const WeightInfo& weight = manifest.modules[static_cast<size_t>(at.module)].held[at.index];
    if (IsTakenFrom(*checkpoint, manifest, weight))
      Passes(result, "weights", [&] { StoredWeight(*checkpoint, manifest, weight); });
  }
  std::vector<std::string> names;
  for (const StoredTensor& tensor : checkpoint->tensors) names.push_back(tensor.name);
  const std::vector<std::string> foreign = ForeignNames(manifest, names);
  if (!foreign.empty())
    Add(result, Severity::kWarning, "weights", DescribeForeign(request.weights, foreign));
}

bool CheckModules(const std::string& package, const Manifest& manifest, CheckResult& result) {
  bool compiles = true;
  for (size_t m = 0; m < manifest.modules.size(); ++m) {
    std::string edited;
    compiles &= Passes(result, "code", [&] {
      edited = EditedPlace(package, manifest.modules[m]);
      if (!edited.empty()) CompileModule(package, manifest, static_cast<int>(m));
    });
    if (!edited.empty())
      Add(result, Severity::kNote, "code",
          package + "/" + edited + ": edited since the model was compiled");
  }
  return compiles && Passes(result, "code", [&] {
           for (const std::string& warning : CheckCode(package, manifest))
             Add(result, Severity::kWarning, "code", warning);
         });
}

}  // namespace pipewright
