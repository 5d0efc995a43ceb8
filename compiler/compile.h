// Declares the compiler as a function from a model to a package. `pipewright compile` calls it, and
// so do C++ programs that trace their own models (compiler/trace.h).
#pragma once
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "passes/pipeline.h"

namespace pipewright {

struct CompileOptions {
  // The package folder. An existing package is replaced if it was not edited; anything else is
  // refused.
  std::string output;
  bool force = false;  // also replace a package that was edited by hand
  int ranks = 0;       // number of ranks of the confs; 0: one per module
  PipelineOptions passes;
  std::string weights;  // a checkpoint to take the weights from; "": use the model's own
  std::string dtype;    // dtype to cast floats to; "": keep
};

struct Compiled {
  Manifest manifest;
  std::vector<std::string> notes;  // for the user: surprising facts about the result
  std::string explanation;         // reasons for the position of every group of nodes, as text
  std::vector<int> assigned;       // by module: its number in the split, which counts dropped ones
};

// Rewrites `model`, cuts it and writes the package. Throws Error.
Compiled Compile(Model& model, const CompileOptions& options);

}  // namespace pipewright
