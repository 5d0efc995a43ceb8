// From a TorchScript module to a graph without calls and attributes.
#pragma once
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "compiler/import/script_archive.h"
#include "passes/model.h"

namespace pipewright {

// The objects of a module tree, by dotted path; the module itself is "".
class ObjectTree {
 public:
  explicit ObjectTree(const torch::jit::Module& root) { objects_[""] = root._ivalue(); }
  // Which object `value` is: reached from the graph's first input by attributes. False: none that
  // is known before the run.
  bool PathOf(const torch::jit::Value* value, std::string& path);
  const c10::intrusive_ptr<c10::ivalue::Object>& At(const std::string& path) {
    return objects_.at(path);
  }

 private:
  std::unordered_map<std::string, c10::intrusive_ptr<c10::ivalue::Object>> objects_;
};

// Replaces every call of a method or function by its body. Scopes of nodes name submodules as in
// Model::graph; source ranges become lines of the model. `file` names the archive for errors.
void InlineCalls(torch::jit::Graph& graph, ObjectTree& objects, const std::string& file);

// with torch.no_grad() and torch.enable_grad(): objects become switches. Throws Error for others.
void ReplaceContexts(torch::jit::Graph& graph, const std::string& file);

// Says where a weight's bytes are.
using Placement = std::function<void(const at::Tensor& tensor, Weight& weight)>;

// Replaces the first input, `self`, by inputs for the weights, `training` and `device`, and every
// attribute by one of them or by a constant. Fills model.weights and model.submodules.
void ResolveAttributes(Model& model, ObjectTree& objects, const Placement& place);

// What a model has in common whose graph has neither calls nor attributes: simplified, outputs
// flat, every value named. Throws Error for inputs that a run cannot feed.
void FinishScript(Model& model);

// Constant folding of numbers, lists and tuples taken apart, exceptions and warnings left out:
// what remains are operations on tensors and sizes, and control flow that depends on data.
void SimplifyScript(std::shared_ptr<torch::jit::Graph>& graph);

}  // namespace pipewright
