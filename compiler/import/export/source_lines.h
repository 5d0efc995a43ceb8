// Finds the lines of the model that an export records for its nodes, and the variables that they
// assign.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

namespace pipewright {

using ExportJson = nlohmann::json;

struct SourceLine {
  std::string file;
  size_t number = 0;  // 0: unknown
  std::string code;   // empty if Python had no source text
};

// Returns the calls of a node's `stack_trace`, outermost first.
std::vector<SourceLine> LinesOf(const std::string& trace);

// Returns the innermost line of user code, or the outermost of all if there is none.
SourceLine OwnLine(const std::string& trace);

// Returns the plain variables that a line of Python assigns, in order, with "" for other targets;
// empty if it assigns none.
std::vector<std::string> AssignedIn(const std::string& code);

// Maps a value's name in the export to the variable of the model that it is assigned to. Only the
// last node of a statement has one.
std::unordered_map<std::string, std::string> VariablesOf(const ExportJson& nodes);

// Returns the submodules of `nn_module_stack` from the outside in; the k-th further call of one is
// "path@k".
std::vector<std::string> StackPaths(const std::string& stack);

}  // namespace pipewright
