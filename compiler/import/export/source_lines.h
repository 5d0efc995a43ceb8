// The lines of the model that an export records for its nodes, and the variables that they assign.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace pipewright {

using ExportJson = nlohmann::json;

struct SourceLine {
  std::string file;
  size_t number = 0;  // 0: none is known
  std::string code;   // empty where Python had no text
};

// The calls of a node's `stack_trace`, outermost first.
std::vector<SourceLine> LinesOf(const std::string& trace);

// The innermost line that is the user's, else the innermost of all.
SourceLine OwnLine(const std::string& trace);

// The plain variables that a line of Python assigns, in order, "" for others among them; empty
// where it assigns none.
std::vector<std::string> AssignedIn(const std::string& code);

// By a value's name in the export: the variable of the model that it becomes. Of the nodes of one
// statement, this is the last one.
std::unordered_map<std::string, std::string> VariablesOf(const ExportJson& nodes);

// Submodules of `nn_module_stack` from the outside in; the k-th further call of one is "path@k".
std::vector<std::string> StackPaths(const std::string& stack);

}  // namespace pipewright
