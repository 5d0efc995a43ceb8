// Rewrites printed TorchScript so that it reads well.
#pragma once
#include <torch/csrc/jit/serialization/source_range_serialization.h>

#include <map>
#include <string>

namespace pipewright {

// The printed class `text` without its declarations, with floats in their shortest form that reads
// back the same, above the operations of each submodule and line of the model a comment that names
// them, and after the line of a variable its note. `ranges` are the printer's; their sources read
// "SUBMODULE|FILE:LINE|CODE".
std::string AnnotateCode(const std::string& text, const torch::jit::SourceRangeRecords& ranges,
                         const std::map<std::string, std::string>& notes);

// The printer folds the last operation into the return statement: gives the result its name back.
void NameResult(std::string& text, const std::string& name);

}  // namespace pipewright
