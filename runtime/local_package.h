// A package called in this process, as a whole, stage by stage or module by module, without ranks:
// for serving, tests and debugging. Autograd runs through all of it, so that losses can be
// differentiated as usual.
#pragma once
#include <string>
#include <vector>

#include "plan/conf.h"
#include "runtime/module.h"

namespace pipewright {

class LocalPackage {
 public:
  // Loads every module. `training`: dropout on, statistics of batches. Throws Error.
  explicit LocalPackage(const std::string& package, bool training = false);

  const Manifest& manifest() const { return manifest_; }
  // The model's outputs for its inputs, both in the order of its signature. Throws Error.
  std::vector<c10::IValue> Call(std::vector<c10::IValue> inputs) const;

  // Piece by piece. Begin puts the inputs among the values (by id, Manifest::values), RunModule and
  // RunStage add what a module, or the modules of a stage, put out. Throws Error where an input of
  // a module is not there yet.
  std::vector<c10::IValue> Begin(std::vector<c10::IValue> inputs) const;
  void RunModule(int module, std::vector<c10::IValue>& values) const;
  void RunStage(const Conf& conf, int stage, std::vector<c10::IValue>& values) const;
  // The model's outputs, when all modules have run.
  std::vector<c10::IValue> End(const std::vector<c10::IValue>& values) const;

  // A weight under its name in the model, a leaf of autograd where it is trained: its grad() is
  // there after a backward pass. One that several modules hold is one tensor. Throws Error for
  // other names.
  at::Tensor Weight(const std::string& name) const;

 private:
  Manifest manifest_;
  std::vector<LoadedModule> modules_;
};

}  // namespace pipewright
