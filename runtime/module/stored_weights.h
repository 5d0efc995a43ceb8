// Maps the weights of a package to their names in files: those of the original model's state dict,
// one of several for tied weights.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "formats/weights/checkpoint.h"

namespace pipewright {

// The first module that holds a weight, and the weight's index there.
struct NamedWeight {
  int module = -1;
  size_t index = 0;  // in ModuleInfo::held
};
// Returns all parameters and buffers by their names in files.
std::map<std::string, NamedWeight> ParametersAndBuffers(const Manifest& manifest);
// Returns the name that files use for any name of the state dict.
std::string KeptName(const Manifest& manifest, const std::string& name);

// Returns the tensor that a checkpoint has for a weight, under the weight's own name or, if that is
// not there, another name that is tied to it; null if there is none.
const StoredTensor* FindStored(const Checkpoint& checkpoint, const Manifest& manifest,
                               const std::string& name);

// Returns the tensor under whose name the file keeps a buffer, as its metadata say, because both
// were one in the model that it was saved from; null if there is none of the buffer's shape.
const StoredTensor* SharedInFile(const Checkpoint& checkpoint, const WeightInfo& weight);

// Returns the tensor of a checkpoint for a weight of the run, under any of its names. Throws Error
// if it is missing, has another shape or type, or has other values under another of its names.
const StoredTensor& StoredWeight(const Checkpoint& checkpoint, const Manifest& manifest,
                                 const WeightInfo& weight);

// Returns those of `names` that no module of the package holds: they are another model's.
std::vector<std::string> ForeignNames(const Manifest& manifest,
                                      const std::vector<std::string>& names);
// Returns a warning about such names (at least one), which `file` holds.
std::string DescribeForeign(const std::string& file, const std::vector<std::string>& foreign);

}  // namespace pipewright
