// What a node of a graph is in Python: a call on its arguments, or a declared torch.nn.Module.
#pragma once
#include <string>
#include <vector>

#include "plan/partition/graph_text.h"

namespace pipewright {

enum class NodeKind {
  kInput,      // Input, Input0, ...: an input of the model
  kHidden,     // the initial state of an RNN, None; so are its items
  kOperation,  // Add, Mul, Concat(1), Size(0), View(9216), Transpose(0, 1), Unsqueeze(1),
               // __getitem__(0), self.get_seq_lens: a method of DeepSpeech's model
  kModule,     // everything else, by its repr
};

// By the whole name before the parenthesis: MultiheadAttention is no Mul.
NodeKind KindOf(const std::string& description);

// Whether the node gives one tensor: only those can be cloned.
bool GivesTensor(const GraphNode& node, const GraphNode* argument);

// The Python expression of an operation. `sizes` says which arguments are Size nodes. Throws Error
// naming `where` for a wrong number of arguments.
std::string OperationCall(const std::string& description, const std::vector<std::string>& arguments,
                          const std::vector<char>& sizes, const std::string& where);

struct ModuleText {
  std::string declaration;       // torch.nn.ReLU(inplace=True)
  std::string import_statement;  // or ""
  std::string note;              // what the description does not say, or ""
};

// The repr of a module as the call that constructs it. Throws Error naming `where` where none can.
ModuleText DeclareModule(const std::string& description, const std::string& where);

}  // namespace pipewright
