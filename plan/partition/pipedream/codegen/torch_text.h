// Writes a node of a graph in Python: as a call on its arguments, or as a declared torch.nn.Module.
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

// By the whole name before the parenthesis: MultiheadAttention is no Mul.
NodeKind KindOf(const std::string& description);

// Says whether the node gives one tensor: only those can be cloned.
bool GivesTensor(const GraphNode& node, const GraphNode* argument);

// The Python expression of an operation. `sizes` says which arguments are Size nodes. Throws Error
// for a wrong number of arguments, and for others than integers in the description.
std::string OperationCall(const Description& description, const std::vector<std::string>& arguments,
                          const std::vector<char>& sizes);

struct ModuleText {
  std::string declaration;       // torch.nn.ReLU(inplace=True)
  std::string import_statement;  // or ""
  std::string note;              // what the description does not say, or ""
};

// The repr of a module as the call that constructs it: of torch.nn, of the models that PipeDream
// profiles, or one of `own`, the names that the model template has. Throws Error naming the place
// where none can.
ModuleText DeclareModule(const Description& description, const std::set<std::string>& own = {});

// The classes that a template in Python defines or imports: class Foo, from MODULE import Foo. "*"
// is one of them where it imports all of a module.
std::set<std::string> ClassesOf(const std::string& model_template);

}  // namespace pipewright
