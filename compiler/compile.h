// The compiler as a function: a model in, a package out. `pipewright compile` and C++ programs that
// trace their own models (compiler/trace.h) call it.
#pragma once
#include <string>
#include <vector>

#include "passes/pipeline.h"
#include "plan/manifest.h"

namespace pipewright {

struct CompileOptions {
  // The package, a folder. One that is there, as compiled, is replaced; anything else is refused.
  std::string output;
  bool force = false;  // replace a package that was edited by hand, too
  int ranks = 0;       // that the confs are for; 0: one a module
  PipelineOptions passes;
  std::string weights;  // a checkpoint to take the weights from; "": the model's own
  std::string dtype;    // cast floats to it; "": leave them
};

struct Compiled {
  Manifest manifest;
  std::vector<std::string> notes;  // for people: what they may not expect
  std::string explanation;         // why every group of nodes is where it is, as text
  std::vector<int> assigned;       // by module: its number among those that the split made; the
                                   // manifest leaves out those that do nothing
};

// Rewrites `model`, cuts it and writes the package. Throws Error.
Compiled Compile(Model& model, const CompileOptions& options);

}  // namespace pipewright
