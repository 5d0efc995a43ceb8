#include "compiler/import/import.h"

#include "plan/error.h"

namespace pipewright {

Model ImportModel(const std::string& path, const ImportOptions& options) {
  constexpr const char* kCure =
      "torch.export.save(torch.export.export(model, inputs), \"model.pt2\")";
  Archive archive(path);
  if (archive.Has("models/model.json")) {
    if (!options.inputs.empty())
      throw UsageError("--inputs", "an export holds one recorded call, whose inputs are fixed",
                       "export the model with the inputs that you want");
    return ImportExport(archive);
  }
  if (archive.Has("data.pkl") && archive.HasUnder("code/")) return ImportScript(archive, options);
  if (archive.Has("data.pkl"))
    throw Error(path, "holds weights only (torch.save), not a model", kCure);
  if (archive.Has("serialized_exported_program.json"))
    throw Error(path, "was written by an old torch.export.save",
                "re-export with torch 2.11 to 2.13");
  throw Error(path, "holds no exported program: models/model.json is missing", kCure);
}

}  // namespace pipewright
