#include "compiler/import/import.h"

#include "plan/error.h"
#include "plan/text.h"

namespace pipewright {

// "(x: float32 [s0, 4], mask: bool [4])"
static std::string RecordedCall(const Model& model) {
  std::vector<std::string> inputs;
  for (size_t i = model.first_input(); i < model.graph->inputs().size(); ++i) {
    const torch::jit::Value* input = model.graph->inputs()[i];
    inputs.push_back(input->debugName());
    if (const ValueMeta* meta = model.MetaOf(input); meta && meta->expression.empty())
      inputs.back() += ": " + DtypeText(meta->dtype) + " [" + Join(meta->shape, ", ") + "]";
  }
  return "(" + Join(inputs, ", ") + ")";
}

Model ImportModel(const std::string& path, const ImportOptions& options) {
  constexpr const char* kCure =
      "torch.export.save(torch.export.export(model, inputs), \"model.pt2\")";
  Archive archive(path);
  if (archive.Has("models/model.json")) {
    Model model = ImportExport(archive);
    if (!options.inputs.empty())
      throw UsageError("--inputs", "an export holds one recorded call, " + RecordedCall(model),
                       "export the model with the inputs that you want");
    return model;
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
