// Writes a node of a graph in Python: as a call with its arguments, or as a torch.nn.Module.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "formats/graph_text.h"

namespace pipewright {

enum class NodeKind {
  kInput,      // Input, Input0, ...: an input of the model
  kHidden,     // the initial state of an RNN, None; so are its items
  kOperation,  // Add, Mul, Concat(1), Size(0), View(9216), Transpose(0, 1), Unsqueeze(1),
               // __getitem__(0), self.get_seq_lens: a method of DeepSpeech's model
  kModule,     // everything else, by its repr
};

// Returns the kind by the whole name before the parenthesis: MultiheadAttention is not Mul.
NodeKind KindOf(const std::string& description);

// Returns true if the node outputs one tensor; only then can its output be cloned.
bool GivesTensor(const GraphNode& node, const GraphNode* argument);

// Returns the Python expression of an operation. `sizes` marks the arguments that are Size nodes.
// Throws Error for a wrong number of arguments, and if the description has anything but integers.
std::string OperationCall(const Description& description, const std::vector<std::string>& arguments,
                          const std::vector<char>& sizes);

struct ModuleText {
  std::string declaration;       // torch.nn.ReLU(inplace=True)
  std::string import_statement;  // or ""
  std::string note;              // an assumption about what the description lacks, or ""
};

// Converts the repr of a module to a call of its constructor. The module may be of torch.nn, of the
// models that PipeDream profiles, or in `own`, the names that the model template has. Throws Error
// naming the position of a module that cannot be constructed.
ModuleText DeclareModule(const Description& description, const std::set<std::string>& own = {});

// Returns the classes that a Python template defines or imports: class Foo, from MODULE import Foo;
// "*" for an import of a whole module.
std::set<std::string> ClassesOf(const std::string& model_template);

}  // namespace pipewright
