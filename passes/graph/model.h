// Defines the model between import and emit: one graph and a table of its weights. Every pass takes
// it.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/weight_kind.h"

namespace pipewright {

// A parameter, buffer or constant. Tensors that share one storage in the model are one Weight with
// several names.
struct Weight {
  std::vector<std::string> names;  // in the order of the state dict; never empty
  WeightKind kind = WeightKind::kParameter;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape, strides;
  int64_t storage_offset = 0;  // elements
  bool requires_grad = false;
  bool persistent = true;
  // Location of the storage: bytes of a file, or memory. 0 bytes: it has no elements, or is absent.
  int file = 0;  // index into Model::files
  uint64_t file_offset = 0, file_bytes = 0;
  at::Tensor data;                       // set for a model traced in this process
  std::optional<at::ScalarType> stored;  // dtype in the file, if it differs
  bool own_layout = false;               // the model's tensor lies in memory in another order
  bool absent = false;                   // described in the file but not contained
};

// Facts that the export recorded about a value.
struct ValueMeta {
  at::ScalarType dtype = at::kFloat;  // for tensors
  bool cast = false;                  // weights were cast, so a floating-point dtype may differ
  std::vector<std::string> shape;     // for tensors: numbers or expressions of the symbols
  std::string expression;             // for integers: the size it equals ("s0", "2*s0"), or ""
};

struct Model {
  std::string file;                // the name from the command line, for messages
  std::vector<std::string> files;  // files that hold weights
  // Inputs are, in this order: one per weight, `training` (bool), `device` (Device), and the
  // model's own. Only the last are inputs of the model; the others become attributes of modules.
  // Scopes of nodes name submodules, outermost first, a k-th further call as "path@k"; source
  // ranges name the line of the model. Value names are unique identifiers.
  std::shared_ptr<torch::jit::Graph> graph;
  std::vector<Weight> weights;  // parameters in the order of model.parameters()
  std::unordered_map<std::string, ValueMeta> meta;  // by value name
  std::unordered_map<std::string, std::string> stems;  // names before they were made unique
  std::map<std::string, std::pair<int64_t, int64_t>> symbols;
  // Conditions on sizes by which forward decided during the export, so that the graph holds for
  // these sizes only: "(s0 % 2) == 0". Those of the second list are as the file has them.
  std::vector<std::string> guards, unknown_guards;
  bool in_training = true;                // a training flag was set at export
  bool markers_dropped = false;           // the format loses pipe_split(), and none was found
  std::vector<std::string> submodules;    // paths of all submodules, in the model's order
  std::vector<std::string> op_libraries;  // libraries with operators that the graph uses
  std::vector<at::Tensor> example;        // of a model traced in this process: one for each input
  std::vector<std::string> notes;         // for the user of Compile

  torch::jit::Value* weight_input(size_t i) const { return graph->inputs()[i]; }
  torch::jit::Value* training() const { return graph->inputs()[weights.size()]; }
  torch::jit::Value* device() const { return graph->inputs()[weights.size() + 1]; }
  size_t first_input() const { return weights.size() + 2; }
  const ValueMeta* MetaOf(const torch::jit::Value* value) const;
  bool IsWeight(const torch::jit::Value* value) const;
  // Returns the meta of a value or of a weight; nothing if it is not known.
  std::optional<ValueMeta> TensorOf(const torch::jit::Value* value) const;
};

// Returns the node and everything in its blocks, with the blocks' return nodes.
std::vector<torch::jit::Node*> WithInner(torch::jit::Node* top);

// Returns the node's argument with that name in its schema, or nullptr.
torch::jit::Value* InputOf(torch::jit::Node* node, const char* name);

// Returns true if the node is pipe_split(): torch's, or the one that TorchScript keeps.
bool IsMarker(const torch::jit::Node* node);

// Returns `node`, or if that is the end of a block, the first node after it in text order; nullptr
// at the end of the graph.
torch::jit::Node* FirstFrom(torch::jit::Node* node);
// Returns the node after `node` in text order, through nested blocks; nullptr at the end.
torch::jit::Node* NextNode(torch::jit::Node* node);
// Returns every node, with those in a node's blocks after it.
std::vector<torch::jit::Node*> AllNodes(torch::jit::Graph& graph);

// Returns the origin of a node for messages: "layer \"blocks.0.fc\" (model.py:31)".
std::string Origin(const torch::jit::Node* node);
// Returns the submodule paths of the node, outermost first, without the model itself.
std::vector<std::string> ModuleStack(const torch::jit::Node* node);

// Returns the name of a dtype in manifests and messages, such as "float32".
std::string DtypeText(at::ScalarType dtype);
// Returns the dtype with that name. Throws Error if the name is unknown.
at::ScalarType ScalarTypeOf(const std::string& word);

// Makes an identifier from `name` that TorchScript prints unchanged.
std::string Identifier(const std::string& name);

}  // namespace pipewright
