// Parses the repr of a torch.nn.Module, by which graphs describe layers. It takes literals only.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

// The description of a node, and where it stands, for messages.
struct Description {
  std::string text;
  std::string path, node;    // the graph's file, the node's id
  int line = 0, column = 0;  // of its first character, from 1; 0: not known

  // "graph.txt:3:12: node node4": the node, at this character of its description.
  std::string At(size_t offset = 0) const;
};

// Conv2d(3, 8, kernel_size=(3, 3)), or Sequential(  (0): Linear(2, 3)  (1): ReLU()).
struct ModuleRepr {
  struct Argument {
    std::string name;   // "": by position
    std::string value;  // in Python: a number, a string, True, False, None, a tuple, a list
    size_t at = 0;      // where in the description
  };

  std::string name;
  size_t at = 0;
  std::vector<Argument> arguments;  // by position first
  std::vector<ModuleRepr> children;
};

// As reprs are printed: a bare `inplace` is a flag, a bare word after "=" a string. Throws Error at
// the character for anything else than literals.
ModuleRepr ReadModuleRepr(const Description& description);

// Nor can anything be named __debug__.
bool IsPythonKeyword(const std::string& word);

// The name before the first parenthesis.
std::string ReprName(const std::string& description);

}  // namespace pipewright
