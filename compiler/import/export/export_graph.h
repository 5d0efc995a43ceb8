// Converts the nodes of an exported program (torch._export.serde.schema, major 8) to torch::jit
// nodes.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "compiler/import/export/source_lines.h"
#include "passes/graph/model.h"

namespace pipewright {

// Adds nodes to `model.graph`, one export node after the other. Errors name the node, its submodule
// and the line of the model.
class ExportConverter {
 public:
  ExportConverter(Model& model, const std::string& path) : model_(model), path_(path) {}

  // Binds `name` in the export to `value`, and records its metadata from `graph`.
  void Bind(const std::string& name, torch::jit::Value* value, const ExportJson& graph);
  void BindWeight(const std::string& name, torch::jit::Value* value) { env_[name] = value; }
  // Names `value` `id`, or id_1, ... if that is taken, and returns the name.
  std::string Name(torch::jit::Value* value, const std::string& id);
  // Renames values that have a name. A value that already has the new name is renamed, unless it is
  // an input of the model.
  void RenameAll(const std::vector<std::pair<torch::jit::Value*, std::string>>& wanted);
  void ConvertNodes(const ExportJson& graph);
  // Returns the value of an output argument of the graph.
  torch::jit::Value* Output(const ExportJson& argument);

 private:
  std::string Unique(const std::string& id);
  void Rename(torch::jit::Value* value, const std::string& id);
  using Env = std::unordered_map<std::string, torch::jit::Value*>;

  void ConvertNode(const ExportJson& node, const ExportJson& graph);
  void ConvertOperator(const ExportJson& node, const ExportJson& graph);
  bool NumbersToTensors(const c10::FunctionSchema& schema, std::optional<at::ScalarType> result,
                        std::vector<torch::jit::Value*>& inputs);
  bool HasSixteenBits(const torch::jit::Value* value) const;
  bool ConvertSpecial(const ExportJson& node, const ExportJson& graph);
  bool WasDetach(const ExportJson& node, const ExportJson& graph) const;
  // Regions (export_control.cc).
  void ConvertGradRegion(const ExportJson& node);
  // Autocast (export_autocast.cc).
  void ConvertAutocastRegion(const ExportJson& node);
  void Autocast(const c10::OperatorName& name, const ExportJson& node, const ExportJson& graph,
                std::vector<torch::jit::Value*>& inputs);
  void SwitchAutocast(bool on);
  torch::jit::Value* Cast(torch::jit::Value* value, at::ScalarType dtype);
  std::vector<torch::jit::Value*> Branch(const ExportJson& branch,
                                         std::vector<torch::jit::Value*> operands);
  void ConvertCond(const ExportJson& node, const ExportJson& graph);
  void ConvertWhile(const ExportJson& node, const ExportJson& graph);
  void ConvertScan(const ExportJson& node, const ExportJson& graph);
  void ConvertMap(const ExportJson& node, const ExportJson& graph);
  void ConvertInline(const ExportJson& node);
  std::vector<torch::jit::Value*> Walk(const ExportJson& body,
                                       const std::vector<torch::jit::Value*>& carried,
                                       const std::vector<torch::jit::Value*>& slices,
                                       const std::vector<torch::jit::Value*>& more);
  // torch.vmap (export_special.cc).
  void ConvertPredispatch(const ExportJson& node, const ExportJson& graph);
  void ConvertCopy(const ExportJson& node, const ExportJson& graph);
  void ConvertFma(const ExportJson& node, const ExportJson& graph);
  std::vector<torch::jit::Value*> Operands(const ExportJson& node, size_t first);
  std::vector<torch::jit::Value*> OperandsOf(const ExportJson& argument);
  std::vector<torch::jit::Value*> Region(const ExportJson& inner,
                                         const std::vector<torch::jit::Value*>& actuals);
  void BindRegion(const ExportJson& node, const ExportJson& graph,
                  at::ArrayRef<torch::jit::Value*> values);
  void BindInlined(const ExportJson& node, const std::vector<torch::jit::Value*>& outputs);
  torch::jit::Value* Bool(torch::jit::Value* value);
  void BindOutputs(const ExportJson& node, const ExportJson& graph,
                   at::ArrayRef<torch::jit::Value*> values);

  // Returns nullptr if the argument does not fit the type, so overload resolution must decide.
  torch::jit::Value* Argument(const ExportJson& argument, const c10::Argument* schema);
  torch::jit::Value* Lookup(const std::string& name);
  torch::jit::Value* Constant(const c10::IValue& value);
  torch::jit::Value* Plain(const ExportJson& argument);
  torch::jit::Value* BoolTensor(torch::jit::Value* flag);
  void Locate(torch::jit::Node* first, const ExportJson& node);
  void NoteDroppedCast(const ExportJson& assertion, const ExportJson* next);
  [[noreturn]] void Refuse(const std::string& what, const std::string& cure = "") const;

  Model& model_;
  std::string path_;
  Env env_;
  // Names that values of the graph being converted get, by the export's names.
  struct Names {
    std::unordered_map<std::string, std::string> variables;  // see VariablesOf
    std::unordered_map<std::string, std::string> outputs;    // names reserved for its outputs
  };
  Names names_;
  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, torch::jit::ScopePtr> scopes_;
  std::unordered_map<std::string, torch::jit::SourceRange> ranges_;
  torch::jit::ScopePtr root_ = c10::make_intrusive<torch::jit::Scope>();
  const ExportJson* current_ = nullptr;
  bool grad_enabled_ = true;
  std::optional<c10::DispatchKey> autocast_;  // device type whose autocast is on
  at::ScalarType autocast_dtype_ = at::kBFloat16;
};

// Returns the region that is argument number `input` of the node, and the names of the node's
// results.
const ExportJson& GraphArgument(const ExportJson& node, size_t input);
std::vector<std::string> ResultNames(const ExportJson& node);

// Convert the schema's enumerations to torch's. Throw Error for unknown numbers.
at::ScalarType ExportDtype(int64_t number);
at::Layout ExportLayout(int64_t number);
at::MemoryFormat ExportMemoryFormat(int64_t number);

}  // namespace pipewright
