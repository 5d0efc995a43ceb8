// Parses the repr of a torch.nn.Module, which graphs use to describe layers. Its arguments must be
// literals.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

// The description of a node, with its position for messages.
struct Description {
  std::string text;
  std::string path, node;    // the graph's file, the node's id
  int line = 0, column = 0;  // the place of its first character, from 1; 0: not known

  // Returns the position of a character, such as "graph.txt:3:12: node node4".
  std::string At(size_t offset = 0) const;
};

// A parsed Conv2d(3, 8, kernel_size=(3, 3)) or Sequential(  (0): Linear(2, 3)  (1): ReLU()).
struct ModuleRepr {
  struct Argument {
    std::string name;   // "": positional
    std::string value;  // in Python: a number, a string, True, False, None, a tuple, a list
    size_t at = 0;      // offset in the description
  };

  std::string name;
  size_t at = 0;
  std::vector<Argument> arguments;  // positional ones first
  std::vector<ModuleRepr> children;
};

// Parses a repr as PyTorch prints it: a bare `inplace` is a flag, a bare word after "=" a string.
// Throws Error with the position of anything that is not a literal.
ModuleRepr ReadModuleRepr(const Description& description);

// Returns true for keywords and for __debug__, which cannot be assigned either.
bool IsPythonKeyword(const std::string& word);

// Returns the name before the first parenthesis.
std::string ReprName(const std::string& description);

}  // namespace pipewright
