#include "runtime/module/module.h"

#include <torch/csrc/jit/passes/inliner.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/missing_file.h"
#include "base/torch_error.h"
#include "formats/package/edited_lines.h"
#include "ops/module_text.h"
#include "ops/statistics.h"
#include "passes/graph/model.h"
#include "runtime/module/module_code.h"
#include "runtime/module/module_weights.h"
#include "runtime/module/table_uses.h"
#include "runtime/module/written_weights.h"
#include "tensors/device_memory.h"
#include "tensors/dtype.h"

namespace pipewright {

// Returns the constants by weight, see LoadedModule::kept_parts.
static std::vector<std::optional<double>> KeptParts(const ModuleInfo& info,
                                                    torch::jit::Graph& graph) {
  std::map<std::string, std::vector<const torch::jit::Value*>> uses;
  for (const torch::jit::Node* node : AllNodes(graph))
    if (node->kind() == torch::jit::prim::GetAttr)
      uses[node->s(torch::jit::attr::name)].push_back(node->output());
  std::vector<std::optional<double>> parts;
  for (const WeightInfo& weight : info.held)
    parts.push_back(weight.kind == WeightKind::kBuffer ? KeptPart(uses[weight.name])
                                                       : std::nullopt);
  return parts;
}

// The first vector function of MKL (2024.2, mkl_vml_serv_cpu_detect) stores the processor type
// twice, first with a preliminary value; a thread that reads this computes with about 12 bits (in
// one of 3,000 processes whose threads start with sqrt at once). So a single thread makes the first
// call before ranks that are threads compute.
static void BeginVectorMath() {
  [[maybe_unused]] static const bool done = at::ones({1024}).sqrt().defined();
}

// `runs`: includes what only a run needs.
static LoadedModule Load(const std::string& package, const Manifest& manifest, int index,
                         const WeightOptions& options, bool runs) {
  const auto& [weights, left_out, known, device] = options;
  BeginVectorMath();
  const ModuleInfo& info = manifest.modules[index];
  LoadedModule module;
  module.index = index;
  module.edited = EditedPlace(package, info);
  const CompiledText code = CompileModule(package, manifest, index);
  module.unit = code.unit;
  module.return_line = code.return_line;
  std::unique_ptr<SafetensorsFile> file;
  auto is_read = [&](const WeightInfo& weight) {
    return weights == WeightSource::kFile || weight.kind == WeightKind::kConstant ||
           (weights == WeightSource::kOther && !weight.persistent);
  };
  if (std::any_of(info.held.begin(), info.held.end(), is_read))
    file = std::make_unique<SafetensorsFile>(PackageFile(package, info.weights));
  module.self =
      c10::ivalue::Object::create(c10::StrongTypePtr(module.unit, code.type),
                                  code.type->numAttributes());
  for (size_t w = 0; w < info.held.size(); ++w) {
    const WeightInfo& weight = info.held[w];
    if (!known.empty() && known[w].defined())
      module.weights.push_back(known[w]);
    else if (!left_out.empty() && left_out[w])
      module.weights.push_back(EmptyOn(device, {0}, DtypeOf(weight.dtype)));
    else
      module.weights.push_back(MakeWeight(weight, is_read(weight) ? file.get() : nullptr, device));
    module.self->setAttr(weight.name, module.weights.back());
    if (weight.kind == WeightKind::kBuffer) module.buffers.push_back(w);
  }
  module.self->setAttr("device", device);
  SetTraining(module, true);

  module.graph = torch::jit::toGraphFunction(*code.forward).graph()->copy();
  torch::jit::Inline(*module.graph);
  if (runs) {
    for (const WrittenWeight& written : WrittenWeights(*module.graph, info, WeightKind::kParameter))
      module.written_parameters.push_back(written.name);
    module.kept_parts = KeptParts(info, *module.graph);
    CheckStatistics(*module.graph);
  }
  module.code = std::make_unique<torch::jit::Code>(module.graph, info.name);
  for (const torch::jit::Node* node : AllNodes(*module.graph))
    module.switches_gradients |= node->kind() == c10::Symbol::aten("set_grad_enabled");
  return module;
}

LoadedModule LoadModule(const std::string& package, const Manifest& manifest, int index,
                        WeightSource weights) {
  return Load(package, manifest, index, {.source = weights}, false);
}

LoadedModule LoadModuleWith(const std::string& package, const Manifest& manifest, int index,
                            const WeightOptions& options) {
  return Load(package, manifest, index, options, true);
}

void SetTraining(LoadedModule& module, bool training) {
  module.self->setAttr("training", training);
}

static constexpr char kOutsideTable[] = " is not in the table ";

// Returns the first index outside the table of an embedding; "" if there is none or it is not the
// module's own input.
static std::string OutsideTable(const LoadedModule& module,
                                const std::vector<std::pair<size_t, at::Tensor>>& indices) {
  const torch::jit::Function& forward = module.self->type()->getMethod("forward");
  const torch::jit::Graph& graph = *torch::jit::toGraphFunction(forward).graph();
  for (const TableUse& use : TableUses(graph)) {
    const int64_t rows = module.self->getAttr(use.table).toTensor().size(0);
    for (const auto& [i, tensor] : indices) {
      if (i != use.input) continue;
      const at::Tensor wrong = tensor.lt(0).logical_or(tensor.ge(rows)).nonzero();
      if (wrong.size(0) == 0) continue;
      at::Tensor index = tensor;
      for (int64_t d = 0; d < wrong.size(1); ++d)
        index = index.select(0, wrong[0][d].item<int64_t>());
      return "\n  input " + forward.getSchema().arguments()[i].name() +
             (wrong.size(1) ? ", row " + std::to_string(wrong[0][0].item<int64_t>()) : "") + ": " +
             std::to_string(index.item<int64_t>()) + kOutsideTable + use.table + " of " +
             std::to_string(rows) + " rows, 0 to " + std::to_string(rows - 1);
    }
  }
  return "";
}

// Returns text such as "input t: int64 [4, 6], values 0 to 12", which shows what is out of range.
static std::string IndicesText(const LoadedModule& module,
                               const std::vector<std::pair<size_t, at::Tensor>>& indices) {
  std::string text;
  try {
    if (text = OutsideTable(module, indices); !text.empty()) return text;
    const auto& arguments = module.self->type()->getMethod("forward").getSchema().arguments();
    for (const auto& [i, tensor] : indices) {
      if (tensor.numel() == 0) continue;
      text += "\n  input " + arguments[i].name() + ": int64 " + ShapeText(tensor.sizes().vec()) +
              ", values " + std::to_string(tensor.min().item<int64_t>()) + " to " +
              std::to_string(tensor.max().item<int64_t>());
    }
  } catch (const std::exception&) {  // the first error is reported
  }
  return text;
}

// Returns the line of the model that a comment in the module's code gives for an error; "": none.
static std::string ModelLineOf(const torch::jit::Graph& graph, const std::string& what) {
  for (const torch::jit::Node* node : graph.nodes()) {
    const auto source = node->sourceRange().source();
    if (source && source->filename())
      return ModelLine(source->text_str().str(), *source->filename(), what);
  }
  return "";
}

// Returns the model's line for an error in the module's code, the lines edited, and what to do
// about it.
static std::string PlaceInModel(const LoadedModule& module, const std::string& what) {
  const std::string line = module.graph ? ModelLineOf(*module.graph, what) : "";
  const std::string place = line.empty() ? "" : "\n  in the model: " + line;
  const bool as_written =  // no fault of the line
      what.find("\nAssertionError:") != std::string::npos || SaysOutOfMemory(what);
  const bool wrong_data = what.find(kOutsideTable) != std::string::npos;
  if (!module.edited.empty())
    return place + "\n  edited since the model was compiled: " + module.edited +
           (as_written || wrong_data ? "" : "\n  change what was edited, or the line that fails");
  return line.empty() || as_written
             ? place
             : place +
                   "\n  change that line, in the model or in this file; if Python runs the "
                   "exported model on such inputs, report it";
}

std::vector<c10::IValue> Run(const LoadedModule& module, std::vector<c10::IValue> inputs) {
  // At the end of a region without gradients, the code switches them on, also where a run has none.
  const at::AutoGradMode restores(at::GradMode::is_enabled());
  std::optional<at::AutoDispatchBelowAutograd> without;
  if (module.switches_gradients && !at::GradMode::is_enabled()) without.emplace();
  torch::jit::Stack stack;
  stack.reserve(inputs.size() + 1);
  stack.emplace_back(module.self);
  std::vector<std::pair<size_t, at::Tensor>> indices;
  for (c10::IValue& input : inputs) {
    if (input.isTensor() && input.toTensor().scalar_type() == at::kLong)
      indices.emplace_back(stack.size(), input.toTensor());
    stack.push_back(std::move(input));
  }
  try {
    torch::jit::InterpreterState(*module.code).run(stack);
  } catch (const std::exception& e) {
    const std::string what = WithoutBacktrace(e.what());
    const std::string said = what + IndicesText(module, indices);
    throw Error(said + PlaceInModel(module, said));
  }
  if (stack.size() == 1 && stack[0].isTuple()) return stack[0].toTupleRef().elements().vec();
  return stack;
}

}  // namespace pipewright
