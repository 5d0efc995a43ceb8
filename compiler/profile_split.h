// `compile --split profile:K`: cuts where a measurement says.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "compiler/compile.h"

namespace pipewright {

struct ProfileSplit {
  CompileOptions compile;       // `output` is a folder for a package that is removed again
  std::function<Model()> read;  // the model, anew each time
  std::string input;            // a safetensors file with a tensor for each input, or ""
  int64_t microbatch = 0;       // samples; 0: as the inputs have them
  int repeat = 10;
  double bandwidth = 1e9;  // bytes a second between modules
};

// Compiles the model with a module a submodule, measures them, and chooses those cuts between them
// that make the slowest of `compile.passes.split.count` runs, its transfers counted, as fast as
// possible: the best there are in the order of execution. Where so fine a cut is not sound, coarser
// submodules are tried. `note` says what was found, for people. Throws Error: fewer places to cut
// than wanted.
SplitSpec FindProfileSplit(const ProfileSplit& wanted, std::string& note);

}  // namespace pipewright
