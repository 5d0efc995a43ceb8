#include "compiler/import/import.h"

#include "base/error.h"
#include "base/files/mapped_file.h"
#include "compiler/import/export/export_archive.h"
#include "compiler/import/script/script_model.h"
#include "formats/call_text.h"
#include "formats/torch/archive.h"
#include "formats/torch/torch_file.h"
#include "formats/torch/zip.h"
#include "ops/transformers_ops.h"

namespace pipewright {

static std::string RecordedCall(const Model& model) {
  std::vector<CallArgument> arguments;
  for (size_t i = model.first_input(); i < model.graph->inputs().size(); ++i) {
    const torch::jit::Value* input = model.graph->inputs()[i];
    CallArgument argument;
    argument.name = input->debugName();
    if (input->type()->kind() != c10::TypeKind::TensorType)
      argument.type = input->type()->annotation_str();
    else if (const ValueMeta* meta = model.MetaOf(input))
      argument.dtype = DtypeText(meta->dtype), argument.shape = meta->shape;
    arguments.push_back(argument);
  }
  return CallText(arguments);
}

// Throws Error for what torch.save writes, a whole model or weights, in either of its formats.
static void RefusePickledModel(const std::string& path, const char* cure) {
  std::string name;
  bool older = false;
  try {
    const MappedFile file(path);
    file.ReadOn(false);
    name = PickledClass(file.bytes(), path);
    older = IsTorchFile(file.bytes()) && !IsZip(file.bytes());
  } catch (const Error&) {  // the archive's reader says what is wrong
  }
  if (!name.empty())
    throw Error(path,
                "is a pickled module (torch.save(model)) of the class " + name +
                    ", whose code only Python can run",
                std::string("load it in Python, and export it: ") + cure);
  if (older) throw Error(path, "holds weights only (torch.save), not a model", cure);
}

Model ImportModel(const std::string& path, const ImportOptions& options) {
  constexpr const char* kCure =
      "torch.export.save(torch.export.export(model, inputs), \"model.pt2\")";
  RegisterTransformersOperators();
  RefusePickledModel(path, kCure);
  Archive archive(path);
  if (archive.Has("models/model.json")) {
    Model model = ImportExport(archive);
    if (!options.inputs.empty())
      throw UsageError("--input-names", "an export holds one recorded call, " + RecordedCall(model),
                       "export the model with the inputs that you want");
    return model;
  }
  if (archive.Has("data.pkl") && archive.HasUnder("code/")) return ImportScript(archive, options.inputs);
  if (archive.Has("data.pkl"))
    throw Error(path, "holds weights only (torch.save), not a model", kCure);
  if (archive.Has("serialized_exported_program.json"))
    throw Error(path, "was written by an old torch.export.save",
                "re-export with torch 2.11 to 2.13");
  throw Error(path, "holds no exported program: models/model.json is missing", kCure);
}

}  // namespace pipewright
