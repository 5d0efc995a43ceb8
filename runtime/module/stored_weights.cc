#include "runtime/module/stored_weights.h"

#include <algorithm>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "formats/weights/diff.h"
#include "formats/weights/safetensors.h"
#include "tensors/dtype.h"

namespace pipewright {

std::string KeptName(const Manifest& manifest, const std::string& name) {
  for (const std::vector<std::string>& names : manifest.tied)
    if (std::find(names.begin(), names.end(), name) != names.end()) return names[0];
  return name;
}

std::map<std::string, NamedWeight> ParametersAndBuffers(const Manifest& manifest) {
  std::map<std::string, NamedWeight> weights;
  for (size_t m = 0; m < manifest.modules.size(); ++m)
    for (size_t w = 0; w < manifest.modules[m].held.size(); ++w) {
      const WeightInfo& info = manifest.modules[m].held[w];
      if (info.kind != WeightKind::kConstant)
        weights.emplace(KeptName(manifest, info.name), NamedWeight{static_cast<int>(m), w});
    }
  return weights;
}

static std::string OtherModel(const Checkpoint& checkpoint) {
  return "it is of another model, or names differ: pipewright weights list " + checkpoint.path;
}

const StoredTensor* FindStored(const Checkpoint& checkpoint, const Manifest& manifest,
                               const std::string& name) {
  if (const StoredTensor* own = checkpoint.Find(name)) return own;
  for (const std::vector<std::string>& names : manifest.tied)
    if (std::find(names.begin(), names.end(), name) != names.end())
      for (const std::string& other : names)
        if (const StoredTensor* found = checkpoint.Find(other)) return found;
  return nullptr;
}

const StoredTensor* SharedInFile(const Checkpoint& checkpoint, const WeightInfo& weight) {
  const auto other = checkpoint.metadata.find(weight.name);
  const StoredTensor* found =
      other == checkpoint.metadata.end() ? nullptr : checkpoint.Find(other->second);
  const bool fits = found && weight.kind == WeightKind::kBuffer && found->shape == weight.shape;
  return fits ? found : nullptr;
}

// Throws Error if the checkpoint has other values under another name of a tied weight.
static void CheckTiedNames(const Checkpoint& checkpoint, const Manifest& manifest,
                           const StoredTensor& stored) {
  for (const std::vector<std::string>& names : manifest.tied) {
    if (std::find(names.begin(), names.end(), stored.name) == names.end()) continue;
    for (const std::string& name : names)
      if (const StoredTensor* other = checkpoint.Find(name);
          other && !SameBits(checkpoint, stored, *other))
        throw TiedNamesDiffer(checkpoint.path, stored.name, name);
  }
}

const StoredTensor& StoredWeight(const Checkpoint& checkpoint, const Manifest& manifest,
                                 const WeightInfo& weight) {
  const StoredTensor* found = FindStored(checkpoint, manifest, weight.name);
  if (!found) found = SharedInFile(checkpoint, weight);
  if (!found) {
    std::vector<std::string> names;
    for (const StoredTensor& tensor : checkpoint.tensors) names.push_back(tensor.name);
    throw Error(checkpoint.path, "no tensor " + Quote(weight.name) + Suggest(weight.name, names),
                OtherModel(checkpoint));
  }
  if (found->shape != weight.shape || DtypeOfSafetensors(found->dtype) != DtypeOf(weight.dtype))
    throw Error(checkpoint.path,
                Quote(found->name) + " is " + found->dtype + " " + ShapeText(found->shape) +
                    ", the package's is " + weight.dtype + " " + ShapeText(weight.shape),
                found->shape == weight.shape ? "weights are not cast: save them as " + weight.dtype
                                             : OtherModel(checkpoint));
  CheckTiedNames(checkpoint, manifest, *found);
  return *found;
}

std::vector<std::string> ForeignNames(const Manifest& manifest,
                                      const std::vector<std::string>& names) {
  std::set<std::string> known;
  for (const ModuleInfo& module : manifest.modules)
    for (const WeightInfo& info : module.held) known.insert(info.name);
  for (const std::vector<std::string>& group : manifest.tied)
    known.insert(group.begin(), group.end());
  std::vector<std::string> foreign;
  for (const std::string& name : names)
    if (!known.count(name)) foreign.push_back(name);
  return foreign;
}

std::string DescribeForeign(const std::string& file, const std::vector<std::string>& foreign) {
  return file + ": " + Counted(foreign.size(), "tensor") +
         " that the package does not have, such as " + Quote(foreign[0]) +
         ": perhaps it is another model's";
}

}  // namespace pipewright
