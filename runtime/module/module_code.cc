#include "runtime/module/module_code.h"

#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/missing_file.h"
#include "base/files/read_file.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/weights/safetensors.h"
#include "ops/draws.h"
#include "ops/op_library.h"
#include "ops/random_ops.h"
#include "ops/transformers_ops.h"
#include "passes/graph/hidden_memory.h"
#include "passes/graph/memory.h"
#include "passes/graph/model.h"
#include "passes/split/show_writes.h"
#include "runtime/module/written_weights.h"
#include "tensors/dtype.h"

namespace pipewright {

namespace {

std::string Listed(const std::vector<std::string>& names) {
  return names.empty() ? "nothing" : "(" + Join(names, ", ") + ")";
}

// Returns the names if they differ from `expected` only in order, otherwise nothing.
std::string Reordered(const std::vector<std::string>& expected,
                      const std::vector<std::string>& found) {
  if (found == expected || !std::is_permutation(found.begin(), found.end(), expected.begin(),
                                                expected.end()))
    return "";
  return Listed(found) + " where manifest.json says " + Listed(expected);
}

// Returns the values that the code returns; a tuple that is created elsewhere counts as one value.
std::vector<const torch::jit::Value*> Returned(const torch::jit::Graph& graph) {
  std::vector<const torch::jit::Value*> values(graph.outputs().begin(), graph.outputs().end());
  if (values.size() == 1 && values[0]->node()->kind() == torch::jit::prim::TupleConstruct) {
    const auto inputs = values[0]->node()->inputs();
    values.assign(inputs.begin(), inputs.end());
  }
  return values;
}

// Returns how to declare in the manifest a tensor that the module's file holds, or "" if the file
// has none of that name.
std::string EntryToAdd(const std::string& package, const ModuleInfo& info,
                       const std::string& name) {
  std::optional<SafetensorsFile> stored;
  try {
    stored.emplace(PackageFile(package, info.weights));
  } catch (const Error&) {
    return "";  // another error is being reported
  }
  const TensorInfo* tensor = stored->Find(name);
  if (!tensor) return "";
  const Json entry = {{"name", name},
                      {"kind", "parameter"},
                      {"dtype", DtypeName(DtypeOfSafetensors(tensor->dtype))},
                      {"shape", tensor->shape},
                      {"requires_grad", true}};
  return info.weights + " holds \"" + name + "\"; for it to be used and trained, add to \"held\" of " +
         info.name + " in manifest.json: " + entry.dump();
}

[[noreturn]] void RefuseDeclared(const std::string& package, const ModuleInfo& info,
                                 const std::string& file, const std::string& name) {
  if (const std::string cure = EntryToAdd(package, info, name); !cure.empty())
    throw Error(file, "the class declares \"" + name + "\", which manifest.json does not list",
                cure);
  std::vector<std::string> weights;
  for (const WeightInfo& weight : info.held) weights.push_back(weight.name);
  throw Error(file, "the class declares \"" + name + "\", which the weight file does not hold" +
                        Suggest(name, weights));
}

// Returns "FILE:12" for the first line that holds `text`, or "FILE".
std::string LineWith(const std::string& file, const std::string& text) {
  const std::string all = ReadFile(file);
  const size_t at = all.find(text);
  if (at == std::string::npos) return file;
  return file + ":" +
         std::to_string(1 + std::count(all.begin(), all.begin() + static_cast<long>(at), '\n'));
}

// Refuses what autograd would refuse at the first step, or not notice: in-place writes to
// parameters, and requires_grad_ within forward.
void RefuseWritesToParameters(torch::jit::Graph& graph, const ModuleInfo& info,
                              const std::string& file) {
  for (const WrittenWeight& written : WrittenWeights(graph, info, WeightKind::kParameter))
    if (written.unseen)
      throw Error(LineOf(written.node, file),
                  std::string("torch.") + written.node->kind().toUnqualString() +
                      " writes through .data to the parameter " + written.name +
                      ": autograd does not see that, and the backward of one microbatch would use "
                      "what the forward of a later one has written",
                  "constrain a buffer, or the value that is computed from the parameter");
  bool enabled = true;
  for (const torch::jit::Node* node : graph.nodes()) {
    if (node->kind() == c10::Symbol::aten("set_grad_enabled"))
      enabled = torch::jit::constant_as<bool>(node->input(0)).value_or(true);
    if (node->kind() == c10::Symbol::aten("requires_grad_"))
      throw Error(LineOf(node, file), "requires_grad_ changes what is trained while forward runs",
                  "write torch.detach(x) for a value, and name weights in the job's \"freeze\"");
    const c10::FunctionSchema* schema = node->maybeSchema();
    if (!enabled || !schema || !schema->is_mutable()) continue;
    for (size_t i = 0; i < schema->arguments().size(); ++i) {
      const c10::AliasInfo* alias = schema->arguments()[i].alias_info();
      const torch::jit::Node* made = node->input(i)->node();
      if (!alias || !alias->isWrite() || made->kind() != torch::jit::prim::GetAttr) continue;
      const std::string& name = made->s(torch::jit::attr::name);
      for (const WeightInfo& weight : info.held)
        if (weight.name == name && weight.kind == WeightKind::kParameter && weight.requires_grad)
          throw Error(LineOf(node, file),
                      std::string("torch.") + node->kind().toUnqualString() +
                          " writes in place to the parameter " + name + ", which is trained",
                      "use the operation that makes a new tensor");
    }
  }
}

// Refuses a write to an input that the tensor's version counter does not show.
void RefuseUnseenWritesToInputs(torch::jit::Graph& graph, const std::string& file) {
  const std::vector<torch::jit::Node*> nodes(graph.nodes().begin(), graph.nodes().end());
  std::vector<Write> writes;
  for (torch::jit::Node* node : nodes) CollectWrites(node, 0, writes);
  if (writes.empty()) return;
  Memory memory(nodes, Alias::kKnown);
  for (const Write& write : writes)
    for (const torch::jit::Value* value : memory.Written(write))
      if (value->node() == graph.param_node() && IsBehindAutograd(write, nodes, memory))
        throw Error(LineOf(write.node, file),
                    "it writes into its input " + value->debugNameBase() +
                        ", which other modules may see",
                    "write into a copy: torch.clone(" + value->debugNameBase() + ")");
}

// Refuses writes that LibTorch has dropped. It relies on schemas, but einsum, atleast_3d, type_as
// and others may return the memory of their operand although their schemas do not say so.
void RefuseDroppedWrites(const CompiledText& code, const std::string& file) {
  // Both count operations that are left: those that write, by line and name, and those whose result
  // is not a tensor, as with `i += 1`, by line.
  std::map<std::pair<int, std::string>, int> writes;
  std::map<int, int> scalars;
  for (torch::jit::Function* method : code.type->methods())
    for (const torch::jit::Node* node : AllNodes(*torch::jit::toGraphFunction(*method).graph())) {
      const auto place = node->sourceRange().file_line_col();
      if (!place || node->kind() == torch::jit::prim::Constant) continue;
      const int line = static_cast<int>(std::get<1>(*place));
      const c10::FunctionSchema* schema = node->maybeSchema();
      if (schema && schema->is_mutable())
        ++writes[{line, node->kind().toUnqualString()}];
      else if (!node->outputs().empty() &&
               node->output(0)->type()->kind() != c10::TypeKind::TensorType)
        ++scalars[line];
    }
  std::vector<CompiledText::Write> others;  // not found by line and name
  for (const CompiledText::Write& write : code.writes)
    if (auto found = writes.find({write.line, write.what}); found == writes.end())
      others.push_back(write);
    else if (--found->second == 0)
      writes.erase(found);
  for (const CompiledText::Write& write : others) {
    const bool call = write.what.ends_with("_");
    if (write.what.ends_with("=") && !write.what.starts_with("[") && scalars[write.line] > 0)
      continue;
    // LibTorch renames some operations (clip_ is clamp_, also `+=` and `[...] =`), and a call
    // within a longer expression may be on another line.
    auto found = std::find_if(writes.begin(), writes.end(), [&](const auto& left) {
      return left.first.first == write.line || (call && left.first.second == write.what);
    });
    if (found == writes.end())
      throw Error(file + ":" + std::to_string(write.line),
                  write.what +
                      " would have no effect: TorchScript drops a write where it sees no use of "
                      "what is written, and does not know that einsum, atleast_3d, type_as, "
                      "dropout and others may return the memory of their operand",
                  "write to the value itself, as x.mul_(2.0), or out of place, as x = x * 2.0");
    if (--found->second == 0) writes.erase(found);
  }
}

// Returns true if code that returns `type` returns a value of this kind.
bool HasKind(const c10::TypePtr& type, ValueKind kind) {
  switch (kind) {
    case ValueKind::kTensor:
      return type->isSubtypeOf(*c10::TensorType::get());
    case ValueKind::kInt:
      return type->kind() == c10::TypeKind::IntType;
    case ValueKind::kFloat:
      return type->kind() == c10::TypeKind::FloatType;
    case ValueKind::kBool:
      return type->kind() == c10::TypeKind::BoolType;
    case ValueKind::kNone:
      return true;
  }
  return true;
}

// The code may be edited, but its inputs, outputs and weights must match the manifest.
void CheckInterface(const std::string& package, const std::string& file, const Manifest& manifest,
                    const ModuleInfo& info, const CompiledText& code, bool edited) {
  const char* fixed = "a module's inputs and outputs are fixed when the model is compiled";
  const c10::FunctionSchema& schema = code.forward->getSchema();
  std::vector<std::string> expected, found, gives;
  for (int id : info.inputs) expected.push_back(manifest.values[id].name);
  for (int id : info.outputs) gives.push_back(manifest.values[id].name);
  for (size_t i = 1; i < schema.arguments().size(); ++i)
    found.push_back(schema.arguments()[i].name());
  if (found.size() != expected.size())
    throw Error(LineWith(file, "def forward("),
                "forward takes " + Listed(found) + " where manifest.json says " + Listed(expected),
                fixed);
  if (const std::string order = Reordered(expected, found); !order.empty())
    throw Error(LineWith(file, "def forward("), "forward takes " + order,
                "declare the arguments in the manifest's order");
  const std::string last =
      code.return_line ? file + ":" + std::to_string(code.return_line) : file;
  std::vector<c10::TypePtr> types = {schema.returns().at(0).type()};
  if (auto tuple = types[0]->cast<c10::TupleType>()) types = tuple->elements().vec();
  if (types.size() != info.outputs.size())
    throw Error(last,
                "forward returns " + Counted(static_cast<int64_t>(types.size()), "value") +
                    " where manifest.json says " + std::to_string(info.outputs.size()),
                fixed + std::string(": return ") + Listed(gives));
  const auto graph = torch::jit::toGraphFunction(*code.forward).graph()->copy();
  torch::jit::Inline(*graph);
  std::vector<std::string> names;
  for (const torch::jit::Value* value : Returned(*graph))
    names.push_back(value->hasDebugName() ? value->debugNameBase() : "");
  if (const std::string order = Reordered(gives, names); !order.empty())
    throw Error(
        last, "forward returns " + order,
        "return the values in the manifest's order, or rename them if this order is intended");
  for (size_t i = 0; i < types.size(); ++i) {
    const ValueInfo& value = manifest.values[info.outputs[i]];
    const c10::TypePtr& type = types[i];
    if (!HasKind(type, value.kind))
      throw Error(last,
                  "forward returns " + type->annotation_str() + " as " + value.name +
                      ", which manifest.json says is a " + ToText(value.kind),
                  std::string("return a ") + ToText(value.kind));
  }
  for (const std::string& name : code.declared)
    if (name != "training" && name != "device" && !code.type->hasAttribute(name))
      RefuseDeclared(package, info, file, name);
  for (const WeightInfo& weight : info.held) {
    if (!code.parameters || !code.declared.count(weight.name)) continue;
    const bool named = code.parameters->count(weight.name);
    if (named != (weight.kind == WeightKind::kParameter))
      throw Error(file,
                  std::string("__parameters__ ") + (named ? "names \"" : "does not name \"") +
                      weight.name + "\", which is a " + ToText(weight.kind),
                  "the list does not decide what is trained: use \"freeze\" in the job, or "
                  "\"requires_grad\" in manifest.json");
  }
  if (!edited) return;
  RefuseDroppedWrites(code, file);
  RefuseWritesToParameters(*graph, info, file);
  RefuseUnseenWritesToInputs(*graph, file);
  for (const torch::jit::Node* node : AllNodes(*graph)) {
    if (const std::string cure = RepeatableForm(node); !cure.empty())
      throw Error(LineOf(node, file),
                  std::string("torch.") + node->kind().toUnqualString() +
                      " draws different random numbers on each rank, and when it is recomputed",
                  cure);
    if (node->kind() == torch::jit::prim::SetAttr) {
      const std::string assigned = "self." + node->s(torch::jit::attr::name);
      throw Error(
          LineWith(file, assigned + " ="),  // the node has no source text
          assigned +
              " is assigned, which would detach it from the weight that is trained and saved",
          "write a buffer in place: torch.copy_(" + assigned + ", ...)");
    }
  }
}

}  // namespace

std::string LineOf(const torch::jit::Node* node, const std::string& file) {
  if (auto place = node->sourceRange().file_line_col())
    return file + ":" + std::to_string(std::get<1>(*place));
  return file;
}

std::string OutputLine(const LoadedModule& module, size_t output, const std::string& name,
                       const std::string& file) {
  const auto graph =
      torch::jit::toGraphFunction(module.self->type()->getMethod("forward")).graph();
  const std::vector<const torch::jit::Value*> returned = Returned(*graph);
  const torch::jit::Value* value = returned.at(std::min(output, returned.size() - 1));
  const bool other = value->hasDebugName() && value->debugNameBase() != name;
  return other && module.return_line > 0 ? file + ":" + std::to_string(module.return_line)
                                         : LineOf(value->node(), file);
}

CompiledText CompileModule(const std::string& package, const Manifest& manifest, int index) {
  for (const std::string& library : manifest.op_libraries) LoadOpLibrary(library);
  RegisterTransformersOperators();
  CurrentRandomKey();  // registers the operators
  const ModuleInfo& info = manifest.modules[index];
  const std::string path = PackageFile(package, info.code);
  std::string name = info.name;
  name[0] = static_cast<char>(std::toupper(name[0]));
  std::vector<std::string> weights;
  for (const WeightInfo& weight : info.held) weights.push_back(weight.name);
  const std::string text = ReadFile(path);
  CompiledText code;
  try {
    code = CompileText(path, text, name, weights);
  } catch (const Error& e) {
    const std::string said = e.what(), key = "object has no attribute or method '";
    const size_t at = said.find(key), begin = at + key.size();
    if (at == std::string::npos) throw;
    const std::string missing = said.substr(begin, said.find('\'', begin) - begin);
    const std::string cure = EntryToAdd(package, info, missing);
    if (!cure.empty()) throw Error(said + "\n  " + cure);
    if (weights.empty()) throw Error(said + "\n  the module has no weights");
    const size_t shown = std::min<size_t>(weights.size(), 8);
    const std::vector<std::string> some(weights.begin(),
                                        weights.begin() + static_cast<long>(shown));
    throw Error(said + "\n  the module has the weights " + Join(some, ", ") +
                (shown < weights.size() ? " and more" : "") + Suggest(missing, weights) +
                ": write getattr(self, \"NAME\")");
  }
  const bool edited = HexHash(text) != info.code_hash;
  CheckInterface(package, path, manifest, info, code, edited);
  // Keeps LibTorch's passes from moving uses of memory across a write to it.
  if (edited)
    for (torch::jit::Function* method : code.type->methods())
      ShowWrites(torch::jit::toGraphFunction(*method).graph());
  return code;
}

std::string EditedCode(const std::string& package, const Manifest& manifest) {
  std::vector<std::string> edited;
  for (const ModuleInfo& module : manifest.modules)
    if (const std::string hash = HexHash(ReadFile(PackageFile(package, module.code)));
        hash != module.code_hash)
      edited.push_back(module.code + " " + hash);
  return Join(edited, ", ");
}

}  // namespace pipewright
