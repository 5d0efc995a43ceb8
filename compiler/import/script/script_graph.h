// Converts a TorchScript module to a graph without calls and attributes.
#pragma once
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "compiler/import/script/script_archive.h"
#include "passes/graph/model.h"

namespace pipewright {

// The objects of a module tree by dotted path; the module itself is "".
class ObjectTree {
 public:
  explicit ObjectTree(const torch::jit::Module& root) { objects_[""] = root._ivalue(); }
  // Finds which object `value` is, if the graph's first input leads to it by attributes. Returns
  // false if it is not known before the run.
  bool PathOf(const torch::jit::Value* value, std::string& path);
  const c10::intrusive_ptr<c10::ivalue::Object>& At(const std::string& path) {
    return objects_.at(path);
  }

 private:
  std::unordered_map<std::string, c10::intrusive_ptr<c10::ivalue::Object>> objects_;
};

// Replaces every call of a method or function by its body. Scopes of nodes name submodules as in
// Model::graph; source ranges become lines of the model. `file` names the archive in errors.
void InlineCalls(torch::jit::Graph& graph, ObjectTree& objects, const std::string& file);

// Replaces the objects of torch.no_grad() and torch.enable_grad() by switches. Throws Error for
// other context managers.
void ReplaceContexts(torch::jit::Graph& graph, const std::string& file);

// Stores the location of a tensor's bytes in the weight.
using WeightSink = std::function<void(const at::Tensor& tensor, Weight& weight)>;

// Replaces the first input, `self`, by inputs for the weights, `training` and `device`, and every
// attribute by one of them or by a constant. Fills model.weights and model.submodules.
void ResolveAttributes(Model& model, ObjectTree& objects, const WeightSink& place);

// Completes a model whose graph has neither calls nor attributes: simplifies it, flattens the
// outputs, and names every value. Throws Error for inputs that a run cannot feed.
void FinishScript(Model& model);

// Folds constant numbers, unpacks lists and tuples, and removes exceptions and warnings. The
// remaining operations are on tensors and sizes, or are control flow that depends on data.
void SimplifyScript(std::shared_ptr<torch::jit::Graph>& graph);

}  // namespace pipewright
