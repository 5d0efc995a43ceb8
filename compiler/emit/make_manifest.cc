// A part of package.h: makes the manifest of a package.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "compiler/emit/package.h"
#include "ops/statistics.h"
#include "passes/graph/error_context.h"
#include "passes/graph/gradients.h"
#include "passes/graph/unset.h"

namespace pipewright {

using torch::jit::Value;

static ValueKind KindOf(const Model& model, const Value* value) {
  if (MayBeUnset(value))
    throw Error(model.file + ": value " + value->debugName() + ", " + Origin(value->node()),
                "has no value if the model returns early, so it cannot leave a module",
                "cut before the lines that return early, or after the code that uses the value");
  switch (value->type()->kind()) {
    case c10::TypeKind::TensorType:
      return ValueKind::kTensor;
    case c10::TypeKind::IntType:
      return ValueKind::kInt;
    case c10::TypeKind::FloatType:
      return ValueKind::kFloat;
    case c10::TypeKind::BoolType:
      return ValueKind::kBool;
    case c10::TypeKind::NoneType:
      return ValueKind::kNone;
    default:
      throw Error(model.file + ": value " + value->debugName() + ", " + Origin(value->node()),
                  "is a " + value->type()->str() + ", which cannot leave a module",
                  "return tensors or numbers, or cut elsewhere");
  }
}

// Returns WeightInfo::merge.
static BufferMerge MergeRule(const Model& model, size_t index) {
  const at::ScalarType type = model.weights[index].dtype;
  if (type == at::kBool) return BufferMerge::kNone;
  if (at::isIntegralType(type, /*includeBool=*/false)) return BufferMerge::kSum;
  return KeptPart({model.weight_input(index)}) ? BufferMerge::kUpdates : BufferMerge::kMean;
}

// Returns the name of the weight that transmit_shared sends as this value, or "".
static std::string SentWeight(const Model& model, const Value* value) {
  const torch::jit::Node* node = value->node();
  if (node->kind() != c10::aten::alias || node->input()->node() != model.graph->param_node() ||
      node->input()->offset() >= model.weights.size())
    return "";
  return model.weights[node->input()->offset()].names[0];
}

static std::map<int, NoGradient> FindNoGradient(const Model& model, const ModuleBody& body,
                                                const ModuleInfo& info, GradientFlow& flow) {
  std::map<int, NoGradient> out;
  for (size_t o = 0; o < body.outputs.size(); ++o) {
    if (!flow.values().count(body.outputs[o])) continue;
    const GradientFlow::Values reached = flow.ReachedFrom(body.outputs[o], body.nodes);
    auto missed = [&](const Value* value) {
      return flow.values().count(value) && !reached.count(value);
    };
    NoGradient found;
    for (size_t i = 0; i < body.inputs.size(); ++i)
      if (missed(body.inputs[i])) found.inputs.push_back(info.inputs[i]);
    for (const auto& [index, held] : body.weights)
      if (missed(model.weight_input(index))) found.weights.push_back(held);
    if (!found.inputs.empty() || !found.weights.empty()) out[info.outputs[o]] = found;
  }
  return out;
}

Manifest MakeManifest(const Model& model, const std::vector<ModuleBody>& bodies) {
  Manifest manifest;
  manifest.version = PIPEWRIGHT_VERSION;
  manifest.source = model.file.substr(model.file.rfind('/') + 1);
  manifest.exported_in_training = model.in_training;
  manifest.symbols = model.symbols, manifest.guards = model.guards;
  manifest.op_libraries = model.op_libraries;
  GradientFlow flow(model);
  std::map<const Value*, int> ids;
  auto add = [&](const Value* value, int producer) {
    const ErrorContext here(value->node());
    ValueInfo info;
    info.name = value->debugName();
    info.kind = KindOf(model, value);
    info.producer = producer;
    const ValueMeta* meta = model.MetaOf(value);
    if (info.kind == ValueKind::kTensor && meta && !meta->cast)
      info.dtype = DtypeText(meta->dtype), info.shape = meta->shape;
    info.gradient = producer >= 0 && info.kind == ValueKind::kTensor && flow.values().count(value);
    info.weight = SentWeight(model, value);
    ids[value] = static_cast<int>(manifest.values.size());
    manifest.values.push_back(info);
  };
  for (size_t i = model.first_input(); i < model.graph->inputs().size(); ++i) {
    add(model.graph->inputs()[i], -1);
    manifest.inputs.push_back(ids.at(model.graph->inputs()[i]));
  }
  std::map<size_t, size_t> places;  // index among the model's parameters, by weight
  for (size_t i = 0; i < model.weights.size(); ++i)
    if (model.weights[i].kind == WeightKind::kParameter) places.emplace(i, places.size());
  std::map<size_t, SharedWeight> holders;
  for (size_t m = 0; m < bodies.size(); ++m) {
    const ModuleBody& body = bodies[m];
    const std::string name = "module" + std::to_string(m);
    ModuleInfo info;
    info.name = name;
    info.code = "modules/" + name + ".py";
    info.weights = "weights/" + name + ".safetensors";
    info.covers = body.covers;
    for (const Value* input : body.inputs) {
      info.inputs.push_back(ids.at(input));
      manifest.values[static_cast<size_t>(ids.at(input))].consumers.push_back(static_cast<int>(m));
    }
    for (const Value* output : body.outputs) {
      add(output, static_cast<int>(m));
      info.outputs.push_back(ids.at(output));
    }
    for (bool parameters : {true, false}) {
      for (const auto& [index, held] : body.weights) {
        const Weight& weight = model.weights[index];
        if ((weight.kind == WeightKind::kParameter) != parameters) continue;
        info.held.push_back({held, weight.kind, DtypeText(weight.dtype), weight.shape,
                             weight.requires_grad, weight.persistent,
                             parameters ? static_cast<int>(places.at(index)) : -1,
                             MergeRule(model, index)});
      }
    }
    info.no_gradient = FindNoGradient(model, body, info, flow);
    for (const auto& [index, held] : body.weights)
      holders[index].holders.push_back({static_cast<int>(m), held});
    manifest.modules.push_back(info);
  }
  for (const Value* output : model.graph->outputs()) {
    auto found = ids.find(output);
    if (found == ids.end())
      throw Error(model.file + ": output " + output->debugName() + ", " + Origin(output->node()),
                  "is made by no module",
                  "return a copy of it: x.clone()");
    manifest.outputs.push_back(found->second);
  }
  for (const auto& [index, shared] : holders)
    if (shared.holders.size() > 1 && model.weights[index].kind == WeightKind::kParameter)
      manifest.shared.push_back(shared);
  for (const Weight& weight : model.weights) {
    if (weight.names.size() < 2) continue;
    manifest.tied.push_back(weight.names);
    std::sort(manifest.tied.back().begin(), manifest.tied.back().end());
  }
  return manifest;
}

}  // namespace pipewright
