// Runs a package in this process without ranks, as a whole, by stage or by module: for serving,
// tests and debugging. Autograd covers all of it, so losses can be differentiated as usual.
#pragma once
#include <string>
#include <vector>

#include "formats/conf.h"
#include "runtime/module/module.h"

namespace pipewright {

class LocalPackage {
 public:
  // Loads every module. `training` enables dropout and batch statistics. Throws Error.
  explicit LocalPackage(const std::string& package, bool training = false);

  const Manifest& manifest() const { return manifest_; }
  // Computes the model's outputs from its inputs, both in the order of its signature. Throws Error.
  std::vector<c10::IValue> Call(std::vector<c10::IValue> inputs) const;

  // Runs the model piece by piece. Begin stores the inputs among the values (by id,
  // Manifest::values); RunModule and RunStage add the outputs of a module or of a stage's modules.
  // Throws Error if an input of a module is missing.
  std::vector<c10::IValue> Begin(std::vector<c10::IValue> inputs) const;
  void RunModule(int module, std::vector<c10::IValue>& values) const;
  void RunStage(const Conf& conf, int stage, std::vector<c10::IValue>& values) const;
  // Returns the model's outputs after all modules have run.
  std::vector<c10::IValue> End(const std::vector<c10::IValue>& values) const;

  // Returns a weight by its name in the model. A trained weight is a leaf of autograd, so its
  // grad() is available after a backward pass. A weight that several modules hold is one tensor.
  // Throws Error for other names.
  at::Tensor Weight(const std::string& name) const;

 private:
  Manifest manifest_;
  std::vector<LoadedModule> modules_;
};

}  // namespace pipewright
