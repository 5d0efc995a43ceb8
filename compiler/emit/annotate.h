// Rewrites printed TorchScript so that it reads well.
#pragma once
#include <torch/csrc/jit/serialization/source_range_serialization.h>

#include <map>
#include <string>

namespace pipewright {

// Returns the printed class `text` without its declarations, with floats in the shortest form that
// reads back as the same number. Adds a comment above the operations of each submodule and line of
// the model that names them, and `notes` behind the lines of their variables. `ranges` are the
// printer's; their sources read "SUBMODULE|FILE:LINE|CODE".
std::string AnnotateCode(const std::string& text, const torch::jit::SourceRangeRecords& ranges,
                         const std::map<std::string, std::string>& notes);

// Gives the result its name back: the printer folds the last operation into the return statement.
void NameResult(std::string& text, const std::string& name);

}  // namespace pipewright
