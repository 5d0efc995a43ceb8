// Runs of modules for the sizes of what they give: of code that was edited, and of a model file
// that does not record sizes. (On the meta device the C++ library lacks operators as common as
// layer norm.)
#pragma once
#include <ATen/core/Generator.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plan/error.h"
#include "plan/manifest.h"

namespace pipewright {

struct LoadedModule;
struct TensorSpec;

// Is given a module whose code was edited, and inputs that it runs on.
using EditObserver = std::function<void(LoadedModule&, const std::vector<c10::IValue>& inputs)>;

// Floating-point numbers that most code takes: from 0 to 1; as matrices that are square,
// symmetric and positive definite.
at::Tensor MadeUp(const TensorSpec& spec, at::Generator generator);

// A module that failed on the values it was given.
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
  // false: single modules, on zeros, their weights zeros too: nothing is read. true: all modules
  // in order, with the package's weights, on PACKAGE/samples.safetensors, else on made-up numbers.
  bool real = false;
  bool samples = false;                 // those in the package
  std::string on = "zeros";             // for messages
  std::map<int, c10::IValue> values{};  // by id: scalars; where `real`, also tensors
  EditObserver observe{};
  std::map<int, std::string> made_at{};  // by id: "modules/module1.py:12", of edited modules
};

// With values for the model's inputs, of the sizes in `specs`.
Trial RealTrial(const std::string& package, const Manifest& manifest,
                const std::vector<TensorSpec>& specs);

// Runs a module in evaluation mode; where `specs` is given, sets the outputs' in it. `blame`: what
// an edited module before returns otherwise than the manifest says, "" for none. `edited`: this one.
// Throws TrialError where the code fails.
void Try(Trial& trial, int module, std::vector<TensorSpec>& specs, bool set_specs, bool edited,
         const std::string& blame);

// As in runtime/shapes.h. `observe` is called for edited modules, for all of them again where zeros
// failed.
std::vector<TensorSpec> InferShapes(const std::string& package, const Manifest& manifest,
                                    const std::vector<TensorSpec>& inputs,
                                    const EditObserver& observe);

}  // namespace pipewright
