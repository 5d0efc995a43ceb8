#include "compiler/emit/explain.h"

#include <algorithm>

#include "base/size.h"
#include "base/text.h"
#include "passes/graph/error_context.h"
#include "passes/split/cuts.h"

namespace pipewright {

// Returns the runs of consecutive operations of one submodule: "blocks.0.fc 3", in order.
static std::vector<std::string> Groups(const ModuleBody& body) {
  std::vector<std::pair<std::string, size_t>> runs;
  for (const torch::jit::Node* node : body.nodes) {
    const ErrorContext here(node);
    if (!IsOperation(node)) continue;
    std::vector<std::string> stack = ModuleStack(node);
    std::string name = stack.empty() ? "(the model itself)" : stack.back();
    if (runs.empty() || runs.back().first != name) runs.emplace_back(name, 0);
    ++runs.back().second;
  }
  std::vector<std::string> texts;
  for (const auto& [name, count] : runs) texts.push_back(name + " " + std::to_string(count));
  return texts;
}

std::string Explain(const Model& model, const std::vector<ModuleBody>& bodies,
                    const Manifest& manifest) {
  std::string out;
  for (size_t m = 0; m < bodies.size(); ++m) {
    const ModuleBody& body = bodies[m];
    const ModuleInfo& info = manifest.modules[m];
    int64_t bytes = 0;
    for (const auto& [index, name] : body.weights) {
      int64_t size = static_cast<int64_t>(c10::elementSize(model.weights[index].dtype));
      for (int64_t d : model.weights[index].shape) size *= d;
      bytes += size;
    }
    out += info.name + ", cut " + (body.reason.empty() ? "here" : body.reason) + "\n";
    if (!info.covers.empty()) out += "  submodules: " + Join(info.covers, ", ") + "\n";
    out += "  operations: " + Join(Groups(body), ", ") + "\n";
    out += "  weights: " + std::to_string(body.weights.size()) + ", " + SizeText(bytes) + "\n";
    for (int id : info.inputs) {
      const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
      out += "  takes " + value.name + " from " +
             (value.producer < 0 ? "the input" : "module" + std::to_string(value.producer)) + "\n";
    }
    for (int id : info.outputs) {
      const ValueInfo& value = manifest.values[static_cast<size_t>(id)];
      std::vector<std::string> to;
      for (int consumer : value.consumers) to.push_back("module" + std::to_string(consumer));
      if (std::count(manifest.outputs.begin(), manifest.outputs.end(), id))
        to.push_back("the output");
      out += "  gives " + value.name + " to " + Join(to, ", ") + "\n";
    }
    for (const std::string& note : body.notes) out += "  " + note + "\n";
  }
  for (const SharedWeight& weight : manifest.shared) {
    std::vector<std::string> holders;
    for (const SharedWeight::Holder& holder : weight.holders)
      holders.push_back("module" + std::to_string(holder.module) + " as " + holder.name);
    out += "shared " + weight.holders[0].name + ": replicated in " + Join(holders, ", ") + "\n";
  }
  for (const ValueInfo& value : manifest.values) {
    if (value.weight.empty()) continue;
    std::vector<std::string> to;
    for (int consumer : value.consumers) to.push_back("module" + std::to_string(consumer));
    out += "shared " + value.weight + ": kept in module" + std::to_string(value.producer) +
           ", transmitted to " + Join(to, ", ") + "\n";
  }
  for (const std::vector<std::string>& names : manifest.tied)
    out += "one weight: " + Join(names, ", ") + "\n";
  return out;
}

}  // namespace pipewright
