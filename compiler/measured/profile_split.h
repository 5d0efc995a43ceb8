// `compile --split profile:K`: finds cuts by measuring.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "compiler/compile.h"

namespace pipewright {

struct ProfileSplit {
  CompileOptions compile;       // `output` is a folder for a package that is deleted again
  std::function<Model()> read;  // reads the model from scratch
  std::string input;            // safetensors file with a tensor per input, or ""
  int64_t microbatch = 0;       // samples; 0: as in the inputs
  int repeat = 10;
  double bandwidth = 1e9;  // bytes per second between modules
};

// Compiles the model with one module per submodule, measures the modules, and chooses the cuts that
// minimize the time of the slowest of `compile.passes.split.count` runs of modules, transfers
// included. The result is optimal for the order of execution. If such fine cuts are not sound, it
// tries coarser submodules. `note` describes the result for the user. Throws Error if there are
// fewer places to cut than wanted.
SplitSpec FindProfileSplit(const ProfileSplit& wanted, std::string& note);

}  // namespace pipewright
