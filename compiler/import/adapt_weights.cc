#include "compiler/import/adapt_weights.h"

#include <torch/csrc/jit/ir/constants.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/dtype.h"
#include "base/error.h"
#include "base/text.h"
#include "compiler/import/traced_dtypes.h"
#include "formats/weights/checkpoint.h"
#include "formats/weights/diff.h"

namespace pipewright {

using torch::jit::Value;

namespace {

// Lists at most `most` of the names, for a message.
std::string Listed(const std::vector<std::string>& names, size_t most = 100) {
  std::vector<std::string> shown(names.begin(),
                                 names.begin() + static_cast<long>(std::min(most, names.size())));
  return Join(shown, ", ") +
         (names.size() > most ? ", and " + std::to_string(names.size() - most) + " more" : "");
}

std::string Text(const std::vector<int64_t>& shape) { return ShapeText(shape); }

// Maps names of the model to names of the checkpoint: removes one prefix and adds another.
struct Renaming {
  std::string off, on;
  std::string operator()(const std::string& name) const {
    return name.rfind(off, 0) == 0 ? on + name.substr(off.size()) : std::string();
  }
};

std::set<std::string> Prefixes(const std::vector<std::string>& names) {
  std::set<std::string> prefixes;
  for (const std::string& name : names)
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      if (prefixes.size() < 1000) prefixes.insert(name.substr(0, dot + 1));
  return prefixes;
}

// Keeps the names unless removing or adding a prefix common to one side finds more.
Renaming BestRenaming(const std::vector<std::string>& model, const Checkpoint& checkpoint) {
  std::set<std::string> stored;
  std::vector<std::string> stored_names;
  for (const StoredTensor& tensor : checkpoint.tensors) {
    stored.insert(tensor.name);
    stored_names.push_back(tensor.name);
  }
  auto matches = [&](const Renaming& renaming) {
    size_t count = 0;
    for (const std::string& name : model) count += stored.count(renaming(name));
    return count;
  };
  Renaming best;
  size_t most = matches(best);
  if (most == model.size()) return best;
  // Only prefixes that all names have are tried; others would confuse layers.
  auto try_prefixes = [&](const std::vector<std::string>& names, bool off) {
    if (names.empty()) return;
    for (const std::string& prefix : Prefixes({names[0]})) {
      size_t with = 0;
      for (const std::string& name : names) with += name.rfind(prefix, 0) == 0;
      if (with * 10 < names.size() * 9) continue;
      Renaming renaming = off ? Renaming{prefix, ""} : Renaming{"", prefix};
      size_t count = matches(renaming);
      if (count > most) best = renaming, most = count;
    }
  };
  try_prefixes(model, true);
  try_prefixes(stored_names, false);
  return best;
}

// Returns the hint for weights that the model file describes but does not contain.
std::string CureForAbsent(const std::vector<std::string>& stateless, const std::string& otherwise) {
  if (stateless.empty()) return otherwise;
  return (otherwise.empty() ? "" : otherwise + "\n  ") + "no state dict holds " +
         Listed(stateless, 12) +
         ": add their values to the file under these names, or export the model with them (not "
         "under torch.device(\"meta\") or FakeTensorMode)";
}

// Makes weight `drop` another name of weight `keep`. Under a name that is not trained, it gives the
// other no gradient.
void Merge(Model& model, size_t keep, size_t drop) {
  Value *from = model.weight_input(drop), *kept = model.weight_input(keep);
  Weight& to = model.weights[keep];
  if (to.requires_grad == model.weights[drop].requires_grad) {
    from->replaceAllUsesWith(kept);
  } else {
    torch::jit::WithInsertPoint start(*model.graph->nodes().begin());
    Value* apart = model.graph->insert(c10::aten::detach, {kept});
    if (!to.requires_grad) kept->replaceAllUsesAfterNodeWith(apart->node(), apart);
    from->replaceAllUsesWith(to.requires_grad ? apart : kept);
  }
  for (const std::string& name : model.weights[drop].names) to.names.push_back(name);
  to.requires_grad |= model.weights[drop].requires_grad;
  to.persistent |= model.weights[drop].persistent;
  if (model.weights[drop].kind == WeightKind::kParameter) to.kind = WeightKind::kParameter;
  model.graph->eraseInput(drop);
  model.weights.erase(model.weights.begin() + static_cast<long>(drop));
}

}  // namespace

// Points the weight to the stored tensor `found`, in `file` of Model::files. Returns true if its
// values are cast.
static bool PointTo(const StoredTensor& found, int file, const std::string& path, Weight& weight) {
  const std::string where = path + ": \"" + found.name + "\"";
  if (found.shape != weight.shape)
    throw Error(where, "is " + Text(found.shape) + ", the model's \"" + weight.names[0] +
                           "\" is " + Text(weight.shape));
  const Dtype* dtype = FindDtype(found.dtype);
  const at::ScalarType stored = ScalarTypeOf(dtype ? dtype->torch : "");
  const bool floats = at::isFloatingType(stored) && at::isFloatingType(weight.dtype);
  if (stored != weight.dtype && !floats)
    throw Error(where, "is " + DtypeText(stored) + ", the model's \"" + weight.names[0] +
                           "\" is " + DtypeText(weight.dtype));
  weight.absent = false;
  weight.stored.reset();
  if (stored != weight.dtype) weight.stored = stored;
  weight.data = at::Tensor();
  weight.file = file;
  weight.storage_offset = 0;
  weight.file_offset = found.offset;
  weight.file_bytes = found.bytes;
  weight.strides = found.strides;
  if (weight.strides.empty()) {
    weight.strides.resize(weight.shape.size());
    int64_t stride = 1;
    for (size_t d = weight.shape.size(); d-- > 0;)
      weight.strides[d] = stride, stride *= std::max<int64_t>(1, weight.shape[d]);
  }
  return stored != weight.dtype;
}

// Throws Error if the tensors under several names of one weight differ.
static void CheckTiedNames(const Checkpoint& checkpoint,
                           const std::vector<const StoredTensor*>& all) {
  for (const StoredTensor* other : all)
    if (!SameBits(checkpoint, *all[0], *other))
      throw TiedNamesDiffer(checkpoint.path, all[0]->name, other->name);
}

std::vector<std::string> TakeWeights(Model& model, const std::string& path) {
  Checkpoint checkpoint = OpenCheckpoint(path);
  std::vector<std::string> notes = checkpoint.warnings, wanted, missing, stateless, kept,
                           unexpected;
  for (const Weight& weight : model.weights)
    if (weight.kind != WeightKind::kConstant)
      wanted.insert(wanted.end(), weight.names.begin(), weight.names.end());
  if (auto edited = checkpoint.metadata.find(kEditedCode); edited != checkpoint.metadata.end())
    notes.push_back(path + " was trained in a package with edited code (" + edited->second +
                    "): this package computes what the model file says");
  Renaming renaming = BestRenaming(wanted, checkpoint);
  if (!renaming.off.empty())
    notes.push_back("the names in " + path + " lack the prefix \"" + renaming.off + "\"");
  if (!renaming.on.empty())
    notes.push_back("the names in " + path + " have the prefix \"" + renaming.on + "\"");
  std::vector<int> file_of;  // index into Model::files
  for (const auto& file : checkpoint.files) {
    file_of.push_back(static_cast<int>(model.files.size()));
    model.files.push_back(file->path());
  }
  // The file may have dropped a name because it shares memory with another.
  auto find = [&](const std::string& name, const Weight& weight) -> const StoredTensor* {
    const std::string stored = renaming(name);
    if (const StoredTensor* found = checkpoint.Find(stored)) return found;
    auto other = checkpoint.metadata.find(stored);
    const StoredTensor* kept =
        other == checkpoint.metadata.end() ? nullptr : checkpoint.Find(other->second);
    return kept && kept->shape == weight.shape ? kept : nullptr;  // else the weight was part of it
  };
  std::set<std::string> used;
  size_t cast = 0;
  using Place = std::tuple<int, uint64_t, std::vector<int64_t>, std::vector<int64_t>, std::string>;
  std::map<Place, size_t> absent_at;
  std::vector<std::pair<size_t, size_t>> same;  // keep, drop
  for (size_t i = 0; i < model.weights.size(); ++i) {
    Weight& weight = model.weights[i];
    std::vector<const StoredTensor*> all;  // under several names of the weight
    for (const std::string& name : weight.names)
      if (const StoredTensor* here = find(name, weight)) all.push_back(here);
    for (const StoredTensor* here : all) used.insert(here->name);
    const StoredTensor* found = all.empty() ? nullptr : all[0];
    if (!found) {
      if (weight.absent) {
        missing.push_back(weight.names[0]);
        if (!weight.persistent) stateless.push_back(weight.names[0]);
      } else if (weight.kind != WeightKind::kConstant && weight.persistent) {
        kept.push_back(weight.names[0]);
      }
      continue;
    }
    const bool absent = weight.absent;
    cast += PointTo(*found, file_of[static_cast<size_t>(found->file)], path, weight);
    CheckTiedNames(checkpoint, all);
    if (!absent) continue;
    Place place{found->file, found->offset, found->shape, found->strides, found->dtype};
    auto [at, fresh] = absent_at.try_emplace(place, i);
    if (!fresh && found->bytes) same.emplace_back(at->second, i);
  }
  for (const StoredTensor& tensor : checkpoint.tensors)
    if (!used.count(tensor.name)) unexpected.push_back(tensor.name);
  if (!missing.empty())
    throw Error(path, "lacks " + Counted(missing.size(), "weight") + ": " + Listed(missing),
                CureForAbsent(stateless, unexpected.empty()
                                             ? ""
                                             : "it has, unexpected: " + Listed(unexpected)));
  if (used.empty() && !wanted.empty())
    throw Error(path, "has none of the model's weights: " + Listed(wanted, 12),
                "it has, unexpected: " + Listed(unexpected, 12));
  if (!kept.empty())
    notes.push_back(path + " lacks " + Listed(kept) + ": kept as in " + model.file);
  if (!unexpected.empty())
    notes.push_back(path + " has " + Listed(unexpected) + ", which the model does not use");
  if (cast) notes.push_back(Counted(cast, "weight") + " cast to the model's dtype");
  for (size_t k = same.size(); k-- > 0;) Merge(model, same[k].first, same[k].second);
  return notes;
}

void RefuseAbsentWeights(const Model& model) {
  std::vector<std::string> absent, stateless;
  for (const Weight& weight : model.weights) {
    if (!weight.absent) continue;
    absent.push_back(weight.names[0]);
    if (!weight.persistent) stateless.push_back(weight.names[0]);
  }
  if (absent.empty()) return;
  throw Error(model.file, "was exported without weights: " + Listed(absent),
              CureForAbsent(stateless, "pass them with --weights FILE"));
}

// Makes the factors of in-place products tensors: x.mul_(0.9) on 16-bit x first rounds a number to
// 16 bits, unlike Python, while a tensor keeps its precision.
static void KeepFactors(Model& model) {
  for (torch::jit::Node* node : AllNodes(*model.graph)) {
    if (node->kind() != c10::aten::mul_ || node->inputs().size() != 2) continue;
    const std::optional<ValueMeta> meta = model.TensorOf(node->input(0));
    const auto kind = node->input(1)->type()->kind();
    if (!meta || !at::isFloatingType(meta->dtype) || kind == c10::TypeKind::TensorType) continue;
    torch::jit::WithInsertPoint before(node);
    Value* factor = model.graph->insert(c10::Symbol::aten("scalar_tensor"), {node->input(1)},
                                        {{"dtype", static_cast<int64_t>(at::kDouble)}});
    factor->node()->copyMetadata(node);
    node->replaceInput(1, factor);
  }
}

void CastWeights(Model& model, const std::string& name) {
  const Dtype* known = FindDtype(name);
  at::ScalarType dtype = known && *known->torch ? ScalarTypeOf(known->torch) : at::kLong;
  if (!at::isFloatingType(dtype))
    throw UsageError("--dtype " + name, "is not a floating-point dtype",
                     "choose float64, float32, bfloat16 or float16");
  auto changes = [&](at::ScalarType own) { return at::isFloatingType(own) && own != dtype; };
  std::set<at::ScalarType> changed;
  for (const Weight& weight : model.weights)
    if (weight.kind != WeightKind::kConstant && changes(weight.dtype)) changed.insert(weight.dtype);
  for (size_t i = model.first_input(); i < model.graph->inputs().size(); ++i)
    if (const ValueMeta* meta = model.MetaOf(model.graph->inputs()[i]);
        meta && meta->expression.empty() && changes(meta->dtype))
      changed.insert(meta->dtype);
  FollowDtype(model, name, changed);
  for (Weight& weight : model.weights) {
    if (weight.kind == WeightKind::kConstant || !changes(weight.dtype)) continue;
    at::ScalarType stored = weight.stored.value_or(weight.dtype);
    weight.stored = stored;
    weight.dtype = dtype;
  }
  torch::jit::Graph& graph = *model.graph;
  torch::jit::WithInsertPoint start(*graph.nodes().begin());
  Value *no = graph.insertConstant(false), *none = graph.insertConstant(c10::IValue());
  Value* number = graph.insertConstant(static_cast<int64_t>(dtype));
  for (size_t i = model.first_input(); i < graph.inputs().size(); ++i) {
    Value* input = graph.inputs()[i];
    const ValueMeta* meta = model.MetaOf(input);
    if (!meta || !meta->expression.empty() || !changes(meta->dtype)) continue;
    torch::jit::Node* node =
        graph.insertNode(graph.create(c10::aten::to, {input, number, no, no, none}, 1));
    input->replaceAllUsesAfterNodeWith(node, node->output());
    node->output()->setDebugName(input->debugName() + "_cast");
    ValueMeta copy = *meta;
    copy.dtype = dtype;
    model.meta[node->output()->debugName()] = copy;
  }
  std::set<std::string> inputs;
  for (size_t i = model.first_input(); i < graph.inputs().size(); ++i)
    inputs.insert(graph.inputs()[i]->debugName());
  for (auto& [value, meta] : model.meta)
    if (at::isFloatingType(meta.dtype) && !inputs.count(value)) meta.cast = true;
  if (dtype == at::kBFloat16 || dtype == at::kHalf) KeepFactors(model);
}

}  // namespace pipewright
