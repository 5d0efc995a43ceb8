// The model between import and emit: one graph and a table of its weights. Every pass takes it.
#pragma once
#include <torch/csrc/jit/ir/ir.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace pipewright {

// A parameter, buffer or constant. Tensors that are one storage in the model are one Weight with
// several names.
struct Weight {
  std::vector<std::string> names;  // of the state dict, in its order; never empty
  std::string kind = "parameter";  // parameter, buffer, constant
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape, strides;
  int64_t storage_offset = 0;  // elements
  bool requires_grad = false;
  bool persistent = true;
  // Where its storage lies: bytes of a file, or memory. 0 bytes: it has no elements, or is absent.
  int file = 0;  // index into Model::files
  uint64_t file_offset = 0, file_bytes = 0;
  at::Tensor data;                       // defined: in memory, of a model traced in this process
  std::optional<at::ScalarType> stored;  // dtype there, where it is another
  bool absent = false;                   // the file describes it and does not hold it
};

// What the export recorded of a value.
struct ValueMeta {
  at::ScalarType dtype = at::kFloat;  // tensors
  bool cast = false;                  // the weights were cast: a floating dtype may be another
  std::vector<std::string> shape;     // tensors: numbers or expressions of the symbols
  std::string expression;             // integers: the size that it is ("s0", "2*s0"), or empty
};

struct Model {
  std::string file;                // the model as the command line named it, for messages
  std::vector<std::string> files;  // that hold weights
  // Inputs in this order: one for each weight, `training` (bool), `device` (Device), and the
  // model's own. Only the last are inputs of the model; the others become attributes of modules.
  // Scopes of nodes name submodules, from the outside in, a k-th further call as "path@k"; source
  // ranges name the line of the model. Value names are unique and are identifiers.
  std::shared_ptr<torch::jit::Graph> graph;
  std::vector<Weight> weights;  // parameters in the order of model.parameters()
  std::unordered_map<std::string, ValueMeta> meta;  // by value name
  std::map<std::string, std::pair<int64_t, int64_t>> symbols;
  bool in_training = true;                // a training flag was set when the model was exported
  bool markers_dropped = false;           // a format that loses pipe_split(), and none was found
  std::vector<std::string> submodules;    // every submodule's path, in the model's order
  std::vector<std::string> op_libraries;  // with operators that the graph uses

  torch::jit::Value* weight_input(size_t i) const { return graph->inputs()[i]; }
  torch::jit::Value* training() const { return graph->inputs()[weights.size()]; }
  torch::jit::Value* device() const { return graph->inputs()[weights.size() + 1]; }
  size_t first_input() const { return weights.size() + 2; }
  const ValueMeta* MetaOf(const torch::jit::Value* value) const;
};

// The node and everything in its blocks, with the blocks' return nodes.
std::vector<torch::jit::Node*> WithInner(torch::jit::Node* top);

// The node's argument of that name in its schema; nullptr: the schema has none.
torch::jit::Value* InputOf(torch::jit::Node* node, const char* name);

// Whether the node is pipe_split(): torch's, or the one that TorchScript keeps.
bool IsMarker(const torch::jit::Node* node);

// `node`, or where that is the end of a block, the first node after it in the order of the text;
// nullptr at the end of the graph.
torch::jit::Node* FirstFrom(torch::jit::Node* node);
// The node after `node` in the order of the text, through nested blocks; nullptr at the end.
torch::jit::Node* NextNode(torch::jit::Node* node);
// Every node, those in the blocks of a node after it.
std::vector<torch::jit::Node*> AllNodes(torch::jit::Graph& graph);

// "layer \"blocks.0.fc\" (model.py:31)": where a node comes from, for messages.
std::string Origin(const torch::jit::Node* node);
// Submodule paths of the node, outermost first, without the model itself.
std::vector<std::string> ModuleStack(const torch::jit::Node* node);

// "float32"; the word for a dtype in manifests and messages.
std::string DtypeText(at::ScalarType dtype);
// Its inverse. Throws Error for a word that none has.
at::ScalarType ScalarTypeOf(const std::string& word);

// An identifier that TorchScript prints as it is, made from `name`.
std::string Identifier(const std::string& name);

}  // namespace pipewright
