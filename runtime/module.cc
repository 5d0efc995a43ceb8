#include "runtime/module_weights.h"

#include <caffe2/serialize/versions.h>
#include <torch/csrc/jit/passes/inliner.h>
#include <torch/csrc/jit/serialization/import_source.h>

#include <algorithm>
#include <map>

#include "passes/op_library.h"
#include "passes/statistics.h"
#include "passes/transformers_ops.h"
#include "plan/dtype.h"
#include "plan/error.h"
#include "plan/json.h"
#include "plan/missing_file.h"
#include "plan/text.h"
#include "plan/torch_error.h"
#include "runtime/recorded/choice.h"
#include "tensors/dtype.h"

namespace pipewright {

const TensorInfo& CheckedWeight(const SafetensorsFile& file, const WeightInfo& weight) {
  const TensorInfo& info = file.At(weight.name);
  if (DtypeOfSafetensors(info.dtype) != DtypeOf(weight.dtype) || info.shape != weight.shape)
    throw Error(file.path(),
                "\"" + weight.name + "\" is " + info.dtype + " " + ShapeText(info.shape) +
                    ", manifest.json says " + weight.dtype + " " + ShapeText(weight.shape),
                "replace it by a tensor of the same shape and type, or compile again");
  return info;
}

namespace {

at::Tensor MakeWeight(const WeightInfo& weight, const SafetensorsFile* file) {
  at::ScalarType type = DtypeOf(weight.dtype);
  // A tensor of its own rather than the mapped file: training writes to it, and kernels of the
  // linear algebra library may round differently where memory is aligned differently.
  at::Tensor tensor = file ? at::empty(weight.shape, type) : at::zeros(weight.shape, type);
  if (file) {
    const TensorInfo& info = CheckedWeight(*file, weight);
    if (info.end > info.begin)
      file->Read(info, 0, static_cast<char*>(tensor.data_ptr()), info.end - info.begin);
  }
  if (weight.kind == "parameter" && weight.requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

std::string Listed(const std::vector<std::string>& names) {
  return names.empty() ? "nothing" : "(" + Join(names, ", ") + ")";
}

// The code may be edited; what it takes, gives and holds may not change on its own.
void CheckInterface(const std::string& file, const Manifest& manifest, const ModuleInfo& info,
                    const c10::ClassType& type, const c10::FunctionSchema& schema) {
  std::vector<std::string> expected, found;
  for (int id : info.inputs) expected.push_back(manifest.values[id].name);
  for (size_t i = 1; i < schema.arguments().size(); ++i)
    found.push_back(schema.arguments()[i].name());
  if (found.size() != expected.size())
    throw Error(file,
                "forward takes " + Listed(found) + " where manifest.json says " + Listed(expected),
                "a module's inputs and outputs are fixed when the model is compiled");
  size_t outputs = 1;
  if (auto tuple = schema.returns().at(0).type()->cast<c10::TupleType>())
    outputs = tuple->elements().size();
  if (outputs != info.outputs.size())
    throw Error(file,
                "forward returns " + std::to_string(outputs) + " values where manifest.json says " +
                    std::to_string(info.outputs.size()),
                "a module's inputs and outputs are fixed when the model is compiled");
  std::vector<std::string> weights;
  for (const WeightInfo& weight : info.held) weights.push_back(weight.name);
  for (size_t i = 0; i < type.numAttributes(); ++i) {
    const std::string& name = type.getAttributeName(i);
    if (name != "training" && name != "device" &&
        std::find(weights.begin(), weights.end(), name) == weights.end())
      throw Error(file, "the class declares \"" + name + "\", which the weight file does not hold" +
                            Suggest(name, weights));
  }
  for (const WeightInfo& weight : info.held) {
    auto slot = type.findAttributeSlot(weight.name);
    if (slot && type.is_parameter(*slot) != (weight.kind == "parameter"))
      throw Error(file,
                  "__parameters__ " +
                      std::string(type.is_parameter(*slot) ? "names \"" : "does not name \"") +
                      weight.name + "\", which is a " + weight.kind,
                  "the list is not what decides what is trained: \"freeze\" in the job is, or "
                  "\"requires_grad\" in manifest.json");
  }
  for (const std::string& name : weights)
    if (!type.hasAttribute(name))
      throw Error(file, "the class does not declare \"" + name + "\", which the weight file holds",
                  "keep the declaration even where the code no longer uses it");
}

}  // namespace

// By weight, see LoadedModule::kept_parts.
static std::vector<std::optional<double>> KeptParts(const ModuleInfo& info,
                                                    const torch::jit::Graph& graph) {
  std::map<std::string, std::vector<const torch::jit::Value*>> uses;
  std::vector<const torch::jit::Block*> left{graph.block()};
  while (!left.empty()) {
    const torch::jit::Block* block = left.back();
    left.pop_back();
    for (const torch::jit::Node* node : block->nodes()) {
      left.insert(left.end(), node->blocks().begin(), node->blocks().end());
      if (node->kind() == torch::jit::prim::GetAttr)
        uses[node->s(torch::jit::attr::name)].push_back(node->output());
    }
  }
  std::vector<std::optional<double>> parts;
  for (const WeightInfo& weight : info.held)
    parts.push_back(weight.kind == "buffer" ? KeptPart(uses[weight.name]) : std::nullopt);
  return parts;
}

// The first vector function of MKL (2024.2, mkl_vml_serv_cpu_detect) stores what kind of processor
// this is twice, first as a number that means something else; a thread that reads it in between
// computes with about 12 bits (one of 3,000 processes whose threads begin with sqrt at once does).
// So one thread makes the first call, before ranks that are threads compute.
static void BeginVectorMath() {
  [[maybe_unused]] static const bool done = at::ones({1024}).sqrt().defined();
}

// What the parser says of `text`, with a caret where it draws none: at the end of a line, where a
// token is missing, and at an indentation. With a cure for what is Python but no TorchScript.
static std::string ParserSays(const std::string& said, const std::string& text) {
  std::string out = said;
  const std::string line_key = "\", line ";
  const size_t at = said.find(line_key);
  if (at != std::string::npos && said.find("<--- HERE") == std::string::npos) {
    const std::vector<std::string> lines = Split(text, '\n');
    size_t number = std::strtoul(&said[at + line_key.size()], nullptr, 10);
    const bool missing = said.rfind("expected", 0) == 0;
    auto start = [&] { return lines[number - 1].find_first_not_of(" \t\r"); };
    auto skip = [&] { return start() == std::string::npos || lines[number - 1][start()] == '#'; };
    if (number >= 1 && number <= lines.size()) {
      // What is missing in front of an indented line is missing at the end of the one before.
      if (missing && said.find("found 'indent'") != std::string::npos)
        do --number;
        while (number > 1 && skip());
      number = std::max<size_t>(number, 1);
      const std::string& line = lines[number - 1];
      const size_t end = line.find_last_not_of(" \t\r") + 1;
      while (!out.empty() && std::isspace(static_cast<unsigned char>(out.back()))) out.pop_back();
      out += "\nline " + std::to_string(number) + ":\n" + line + "\n" +
             std::string(missing ? end : std::min(start(), end), ' ') + "~ <--- HERE";
    }
  }
  if (said.find("undefined value F:") != std::string::npos ||
      said.find("torch.nn.functional.") != std::string::npos)
    out += "\nmodules are TorchScript: write torch.relu(x) for F.relu(x), and so on";
  const size_t raise = out.find("raise ");
  if (said.rfind("undefined value ", 0) == 0 && raise != std::string::npos &&
      out.compare(raise + 6, said.find(':') - 16, said, 16, said.find(':') - 16) == 0)
    out +=
        "\nmodules are TorchScript, which raises AssertionError alone: assert CONDITION, \"why\"";
  return out;
}

// `runs`: with what only a run needs.
static LoadedModule Load(const std::string& package, const Manifest& manifest, int index,
                         WeightSource weights, const std::vector<bool>& left_out,
                         const std::vector<at::Tensor>& known, bool runs, BodyChoice body) {
  BeginVectorMath();
  for (const std::string& library : manifest.op_libraries) LoadOpLibrary(library);
  RegisterTransformersOperators();
  const ModuleInfo& info = manifest.modules[index];
  std::string path = PackageFile(package, info.code);
  LoadedModule module;
  module.index = index;
  module.unit = std::make_shared<torch::jit::CompilationUnit>();
  std::string text = ReadFile(path);
  std::string name = info.name;
  name[0] = static_cast<char>(std::toupper(name[0]));
  std::vector<at::IValue> constants;
  c10::ClassTypePtr type;
  torch::jit::Function* forward = nullptr;
  try {
    torch::jit::SourceImporter importer(
        module.unit, &constants,
        [&](const std::string& unit) -> std::shared_ptr<torch::jit::Source> {
          if (unit != "__torch__") return nullptr;
          return std::make_shared<torch::jit::Source>(text, path, 1);
        },
        caffe2::serialize::kProducedFileFormatVersion);
    if (text.find("class " + name + "(") == std::string::npos)
      throw std::runtime_error("it declares no class " + name + ", which is what is run");
    type = importer.loadType(c10::QualifiedName("__torch__." + name))->expect<c10::ClassType>();
    forward = &type->getMethod("forward");
    forward->ensure_defined();
  } catch (const std::exception& e) {
    throw Error(path, "does not compile\n" + ParserSays(WithoutBacktrace(e.what()), text));
  }
  CheckInterface(path, manifest, info, *type, forward->getSchema());

  std::unique_ptr<SafetensorsFile> file;
  const bool constants_only = weights == WeightSource::kZeros;
  auto is_read = [&](const WeightInfo& weight) {
    return !constants_only || weight.kind == "constant";
  };
  if (std::any_of(info.held.begin(), info.held.end(), is_read))
    file = std::make_unique<SafetensorsFile>(PackageFile(package, info.weights));
  module.self =
      c10::ivalue::Object::create(c10::StrongTypePtr(module.unit, type), type->numAttributes());
  for (size_t w = 0; w < info.held.size(); ++w) {
    const WeightInfo& weight = info.held[w];
    if (!known.empty() && known[w].defined())
      module.weights.push_back(known[w]);
    else if (!left_out.empty() && left_out[w])
      module.weights.push_back(at::empty({0}, at::dtype(DtypeOf(weight.dtype))));
    else
      module.weights.push_back(MakeWeight(weight, is_read(weight) ? file.get() : nullptr));
    module.self->setAttr(weight.name, module.weights.back());
    if (weight.kind == "buffer") module.buffers.push_back(w);
  }
  if (type->hasAttribute("device")) module.self->setAttr("device", at::Device(at::kCPU));
  SetTraining(module, true);

  auto graph = torch::jit::toGraphFunction(*forward).graph()->copy();
  torch::jit::Inline(*graph);
  if (runs) {
    module.kept_parts = KeptParts(info, *graph);
    CheckStatistics(*graph);
  }
  module.code = std::make_unique<torch::jit::Code>(graph, info.name);
  const bool on_disk = std::find(left_out.begin(), left_out.end(), true) != left_out.end();
  module.recorded = BodiesFor(body, *graph, module.weights, on_disk, index);
  return module;
}

LoadedModule LoadModule(const std::string& package, const Manifest& manifest, int index,
                        WeightSource weights, BodyChoice body) {
  return Load(package, manifest, index, weights, {}, {}, false, body);
}

LoadedModule LoadModuleWithout(const std::string& package, const Manifest& manifest, int index,
                               const std::vector<bool>& left_out, BodyChoice body,
                               const std::vector<at::Tensor>& known) {
  return Load(package, manifest, index, WeightSource::kFile, left_out, known, true, body);
}

void SetTraining(LoadedModule& module, bool training) {
  if (module.self->type()->hasAttribute("training")) module.self->setAttr("training", training);
}

// The first index that is outside the table in which an embedding looks it up; "": none is, or it
// is not the module's own input.
static std::string OutsideTable(const LoadedModule& module,
                                const std::vector<std::pair<size_t, at::Tensor>>& indices) {
  const torch::jit::Function& forward = module.self->type()->getMethod("forward");
  const torch::jit::Graph& graph = *torch::jit::toGraphFunction(forward).graph();
  for (const torch::jit::Node* node : graph.nodes()) {
    if (node->kind() != c10::aten::embedding ||
        node->input(0)->node()->kind() != torch::jit::prim::GetAttr)
      continue;
    const std::string& table = node->input(0)->node()->s(torch::jit::attr::name);
    const int64_t rows = module.self->getAttr(table).toTensor().size(0);
    for (const auto& [i, tensor] : indices) {
      if (graph.inputs()[i] != node->input(1)) continue;
      const at::Tensor wrong = tensor.lt(0).logical_or(tensor.ge(rows)).nonzero();
      if (wrong.size(0) == 0) continue;
      at::Tensor index = tensor;
      for (int64_t d = 0; d < wrong.size(1); ++d)
        index = index.select(0, wrong[0][d].item<int64_t>());
      return "\n  input " + forward.getSchema().arguments()[i].name() +
             (wrong.size(1) ? ", row " + std::to_string(wrong[0][0].item<int64_t>()) : "") + ": " +
             std::to_string(index.item<int64_t>()) + " is not in the table " + table + " of " +
             std::to_string(rows) + " rows, 0 to " + std::to_string(rows - 1);
    }
  }
  return "";
}

// "input t: int64 [4, 6], values 0 to 12": what is out of range of a table is seen by it.
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
  } catch (const std::exception&) {  // what went wrong first is told
  }
  return text;
}

std::vector<c10::IValue> Run(const LoadedModule& module, std::vector<c10::IValue> inputs) {
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
    throw Error(WithoutBacktrace(e.what()) + IndicesText(module, indices));
  }
  if (stack.size() == 1 && stack[0].isTuple()) return stack[0].toTupleRef().elements().vec();
  return stack;
}

}  // namespace pipewright
