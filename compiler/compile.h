// The compiler as a function: a model in, a package out. `pipewright compile` and C++ programs that
// trace their own models (compiler/trace.h) call it.
#pragma once
#include <string>
#include <vector>

#include "passes/pipeline.h"
#include "plan/manifest.h"

namespace pipewright {

struct CompileOptions {
  std::string
      output;     // the package, a folder; one that is there is replaced, anything else refused
  int ranks = 0;  // that the confs are for; 0: one a module
  PipelineOptions passes;
  std::string weights;  // a checkpoint to take the weights from; "": the model's own
  std::string dtype;    // cast floats to it; "": leave them
};

struct Compiled {
  Manifest manifest;
  std::vector<std::string> notes;  // for people: what they may not expect
  std::string explanation;         // why every group of nodes is where it is, as text
};

// Rewrites `model`, cuts it and writes the package. Throws Error.
Compiled Compile(Model& model, const CompileOptions& options);

}  // namespace pipewright
