// Runs modules once to find the sizes of their outputs: modules with edited code, and models whose
// file does not record sizes. (On the meta device the C++ library lacks operators as common as
// layer norm.)
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "formats/manifest.h"

namespace pipewright {

struct LoadedModule;
struct TensorSpec;

// Called with a module whose code was edited and inputs that it runs on.
using EditObserver = std::function<void(LoadedModule&, const std::vector<c10::IValue>& inputs)>;

// Returns floating-point numbers from 0 to 1, which most code accepts; square matrices are
// symmetric and positive definite.
at::Tensor MadeUp(const TensorSpec& spec, at::Generator generator);

// A module failed on the values it was given.
class TrialError : public Error {
 public:
  TrialError(int module, const std::string& where, const std::string& what,
             const std::string& cure)
      : Error(where, what, cure), module(module) {}
  int module;
};

struct Trial {
  const std::string& package;
  const Manifest& manifest;
  // false: runs single modules on zeros, with zero weights, and reads nothing. true: runs all
  // modules in order, with the package's weights, on PACKAGE/samples.safetensors or else on
  // generated numbers.
  bool real = false;
  bool samples = false;                 // the values are the package's samples
  std::string on = "zeros";             // for messages
  std::map<int, c10::IValue> values{};  // by id: scalars and, if `real`, tensors
  EditObserver observe{};
  std::map<int, std::string> made_at{};  // by id, for edited modules: "modules/module1.py:12"
};

// Makes a trial with values for the model's inputs, of the sizes in `specs`.
Trial RealTrial(const std::string& package, const Manifest& manifest,
                const std::vector<TensorSpec>& specs);

// Runs a module in evaluation mode and stores its outputs' specs in `specs` if given. `blame`
// describes how an earlier edited module deviates from the manifest, or is "". `edited` refers to
// this module. Throws TrialError if the code fails.
void Try(Trial& trial, int module, std::vector<TensorSpec>& specs, bool set_specs, bool edited,
         const std::string& blame);

}  // namespace pipewright
