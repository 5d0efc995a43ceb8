// The names under which files keep the weights of a package: those of the original model's state
// dict, one of several for tied weights.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "formats/weights/checkpoint.h"

namespace pipewright {

// A tensor of the run under the name that files keep, and the first module that holds it.
struct NamedWeight {
  int module = -1;
  size_t index = 0;  // in ModuleInfo::held
};
std::map<std::string, NamedWeight> ParametersAndBuffers(const Manifest& manifest);
// The name that files keep for any name of the state dict.
std::string KeptName(const Manifest& manifest, const std::string& name);

// The tensor of a checkpoint that is a weight of the run, under any of its names. Throws Error
// where it is missing or of another shape or type.
const StoredTensor& StoredWeight(const Checkpoint& checkpoint, const Manifest& manifest,
                                 const WeightInfo& weight);

// Those of `names` that no module of the package holds: they are another model's.
std::vector<std::string> ForeignNames(const Manifest& manifest,
                                      const std::vector<std::string>& names);
// Returns a sentence about them, for a warning; there is at least one. `file`: where they are.
std::string DescribeForeign(const std::string& file, const std::vector<std::string>& foreign);

}  // namespace pipewright
