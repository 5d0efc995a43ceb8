#include "compiler/compile.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/symbol.h"
#include "base/text.h"
#include "base/torch_error.h"
#include "compiler/emit/explain.h"
#include "compiler/emit/package.h"
#include "compiler/import/adapt_weights.h"
#include "compiler/import/weight_layouts.h"
#include "passes/graph/error_context.h"
#include "passes/graph/gradients.h"

namespace pipewright {

static const char kMarkersDropped[] =
    "torch.jit drops pipe_split() when it writes a file, so the model is one module; call the one "
    "of examples/torchscript/markers.py, export with torch.export, or pass --split equal:N or "
    "--split modules:NAME,...";
static const char kNoMarkers[] =
    "the model has no markers and is one module; call torch.distributed.pipelining.pipe_split() "
    "between layers, or pass --split equal:N or --split modules:NAME,...";
static const char kNoMarkersTraced[] =
    "the model has no markers and is one module; call pipewright::pipe_split() between layers, or "
    "set passes.split = ParseSplit(\"equal:N\")";
static const char kEvaluation[] =
    "the model was exported in evaluation mode: dropout and batch norm stay as in evaluation when "
    "it is trained; call model.train() before exporting";

// Makes an input that the model returns unchanged an output of a module, too.
static void AliasReturnedInputs(Model& model) {
  torch::jit::Graph& graph = *model.graph;
  std::set<std::string> taken;
  for (const torch::jit::Value* input : graph.inputs()) taken.insert(input->debugName());
  for (torch::jit::Node* node : AllNodes(graph))
    for (const torch::jit::Value* value : node->outputs()) taken.insert(value->debugName());
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    torch::jit::Value* output = graph.outputs()[i];
    if (output->node()->kind() != c10::prim::Param ||
        output->type()->kind() != c10::TypeKind::TensorType)
      continue;
    torch::jit::WithInsertPoint last(graph.return_node());
    torch::jit::Node* alias = graph.insertNode(graph.create(c10::aten::alias, {output}, 1));
    std::string name = output->debugName() + "_out";
    for (int k = 2; !taken.insert(name).second; ++k)
      name = output->debugName() + "_out" + std::to_string(k);
    alias->output()->setDebugName(name);
    if (const ValueMeta* known = model.MetaOf(output)) {
      ValueMeta meta = *known;
      model.meta[alias->output()->debugName()] = meta;
    }
    graph.return_node()->replaceInput(i, alias->output());
  }
}

// Notes values that enter another module with sizes that do not follow from the inputs.
static void NoteSizesOfData(const Manifest& manifest, std::vector<std::string>& notes) {
  std::set<std::string> known;
  for (int input : manifest.inputs)
    for (const std::string& size : manifest.values[static_cast<size_t>(input)].shape)
      for (const std::string& symbol : SymbolsOf(size)) known.insert(symbol);
  for (const ValueInfo& value : manifest.values) {
    bool of_data = false;
    for (const std::string& size : value.shape)
      for (const std::string& symbol : SymbolsOf(size)) of_data = of_data || !known.count(symbol);
    if (!of_data || value.producer < 0 || value.consumers.empty()) continue;
    std::vector<std::string> modules = {std::to_string(value.producer)};
    for (int module : value.consumers) modules.push_back(std::to_string(module));
    notes.push_back("the sizes [" + Join(value.shape, ", ") + "] of value \"" + value.name +
                    "\" depend on the data, so that it cannot be sent: modules " +
                    Join(modules, ", ") + " run on one rank only; or cut elsewhere");
  }
}

// Notes operations at which training fails if its loss depends on them, where dtypes are known.
static void NoteMissingDerivatives(const Model& model, std::vector<std::string>& notes) {
  const std::vector<torch::jit::Node*> nodes(model.graph->nodes().begin(),
                                             model.graph->nodes().end());
  std::vector<const torch::jit::Node*> without;
  for (const torch::jit::Node* node : nodes)
    if (const c10::FunctionSchema* schema = node->maybeSchema(); schema && HasNoDerivative(*schema))
      without.push_back(node);
  if (without.empty()) return;
  GradientFlow flow(model);
  GradientFlow::Values reached;
  for (const torch::jit::Value* output : model.graph->outputs())
    reached.merge(flow.ReachedFrom(output, nodes));
  std::set<std::string> said;
  for (const torch::jit::Node* node : without) {
    // A tensor created without inputs (zeros) can get a gradient from a later write to it.
    const auto inputs = node->inputs(), outputs = node->outputs();
    if (std::none_of(inputs.begin(), inputs.end(),
                     [&](const torch::jit::Value* value) { return flow.values().count(value) > 0; }) ||
        std::none_of(outputs.begin(), outputs.end(), [&](const torch::jit::Value* value) {
          return reached.count(value) > 0 && model.MetaOf(value);
        }))
      continue;
    const std::string at = std::string(node->kind().toQualString()) + ", " + Origin(node);
    if (said.insert(at).second)
      notes.push_back(at + ": PyTorch has no derivative of it: training fails if its loss depends "
                           "on the result. Write that line with other operations, or detach what "
                           "it is given");
  }
}

// Notes the conditions on sizes that runs cannot check: those that are not understood, and those on
// inputs that the model does not use.
static void NoteGuards(const Model& model, const Manifest& manifest,
                       std::vector<std::string>& notes) {
  std::map<std::string, int64_t> sizes;  // by symbol
  for (int id : manifest.inputs)
    for (const std::string& size : manifest.values[static_cast<size_t>(id)].shape)
      for (const std::string& symbol : SymbolsOf(size)) sizes[symbol] = 1;
  std::vector<std::string> unchecked = model.unknown_guards;
  for (const std::string& guard : manifest.guards) {
    const std::vector<std::string> used = SymbolsOf(guard);
    if (std::any_of(used.begin(), used.end(), [&](const std::string& word) {
          return model.symbols.count(word) && !sizes.count(word);
        }))
      unchecked.push_back(guard);
  }
  for (const std::string& guard : unchecked)
    notes.push_back("the export holds only for " + guard +
                    ", which runs do not check: keep to sizes like those of the example");
}

// Throws Error if there are fewer modules than ranks.
static void CheckRanks(const Model& model, int modules, const CompileOptions& options) {
  if (options.ranks <= modules) return;
  const bool unmarked = modules == 1 && options.passes.split.kind == SplitSpec::kMarkers;
  std::string cure;
  if (!model.example.empty())  // compiled by a C++ program
    cure =
        "cut it into more: pipewright::pipe_split() between layers, or passes.split = "
        "ParseSplit(\"equal:" +
        std::to_string(options.ranks) + "\"); or ranks = " + std::to_string(modules);
  else
    cure = "cut it into more: --split equal:" + std::to_string(options.ranks) +
           (unmarked ? std::string(", --split modules:NAME,... (before these submodules), or ") +
                           (model.markers_dropped
                                ? "markers that torch.jit keeps (examples/torchscript/markers.py)"
                                : "pipe_split() between layers of the model")
                     : std::string()) +
           "; or --ranks " + std::to_string(modules);
  throw Error(model.file,
              Counted(modules, "module") + " cannot be grouped into " +
                  Counted(options.ranks, "stage") + ", one per rank" +
                  (unmarked ? ": nothing says where to cut the model" : ""),
              cure);
}

static Compiled CompileModel(Model& model, const CompileOptions& options) {
  Compiled out;
  auto add = [&](const std::vector<std::string>& notes) {
    out.notes.insert(out.notes.end(), notes.begin(), notes.end());
  };
  add(model.notes);
  KeepLayouts(model);  // the export's layouts, not a checkpoint's
  // The model decides which weights share memory, or the checkpoint if the model holds none.
  const bool absent = std::any_of(model.weights.begin(), model.weights.end(),
                                  [](const Weight& weight) { return weight.absent; });
  if (!absent) add(MergeViews(model));
  if (!options.weights.empty()) add(TakeWeights(model, options.weights));
  RefuseAbsentWeights(model);
  if (absent) add(MergeViews(model));
  if (!options.dtype.empty()) {
    CastWeights(model, options.dtype);
    for (at::Tensor& input : model.example)
      if (input.is_floating_point()) input = input.to(ScalarTypeOf(options.dtype));
  }
  AliasReturnedInputs(model);
  std::vector<ModuleBody> bodies = RunPasses(model, options.passes, &out.notes);
  ErrorContext::Take();  // clears what a caught exception left
  CheckRanks(model, static_cast<int>(bodies.size()), options);
  const std::filesystem::path profile = std::filesystem::path(options.output) / "profile.json";
  const bool measured = std::filesystem::exists(profile);
  out.manifest = WritePackage(model, bodies, {options.output, options.ranks, options.force});
  if (measured && !std::filesystem::exists(profile))
    out.notes.push_back("the profile in " + options.output +
                        " was for other modules or sizes and was removed: `pipewright profile " +
                        options.output + "` measures the new ones");
  for (const ModuleBody& body : bodies) out.assigned.push_back(body.assigned);
  out.explanation = Explain(model, bodies, out.manifest);
  NoteSizesOfData(out.manifest, out.notes);
  NoteMissingDerivatives(model, out.notes);
  NoteGuards(model, out.manifest, out.notes);
  if (out.manifest.modules.size() == 1 && options.passes.split.kind == SplitSpec::kMarkers)
    out.notes.emplace_back(model.markers_dropped    ? kMarkersDropped
                           : !model.example.empty() ? kNoMarkersTraced
                                                    : kNoMarkers);
  if (!out.manifest.exported_in_training) out.notes.emplace_back(kEvaluation);
  return out;
}

Compiled Compile(Model& model, const CompileOptions& options) {
  try {
    return CompileModel(model, options);
  } catch (const Error&) {
    throw;
  } catch (const std::system_error&) {  // file errors
    throw;
  } catch (const std::bad_alloc&) {
    ErrorContext::Take();
    throw;
  } catch (const std::exception& e) {  // LibTorch's errors
    const std::string at = ErrorContext::Take(), place = model.file + (at.empty() ? "" : ": " + at);
    if (SaysOutOfMemory(e.what()))
      throw Error(place, "there is not enough memory for this: " + WithoutBacktrace(e.what()),
                  "compile where there is more, or write that line with smaller tensors");
    throw Error(place, "LibTorch fails on it: " + WithoutBacktrace(e.what()),
                std::string(at.empty() ? "cut elsewhere (--split), or not at all (--split equal:1)"
                                       : "write that line with other operations") +
                    "; this is a fault of pipewright: please report it with the model. --dump-ir "
                    "DIR keeps the graph after each pass, whose last file shows where it failed");
  }
}

}  // namespace pipewright
