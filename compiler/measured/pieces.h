// A model cut into pieces as fine as it allows, to decide where to cut it.
#pragma once
#include <functional>
#include <vector>

#include "compiler/compile.h"

namespace pipewright {

struct FinePieces {
  SplitSpec split;
  std::vector<int> cut_before;  // by module of the package: the number of the cut
};

// Writes a package with one module per submodule to `compile.output` or, if such fine cuts are not
// sound, one of coarser submodules. `read` reads the model from scratch. Throws Error if none is.
FinePieces CompilePieces(CompileOptions compile, const std::function<Model()>& read);

// Returns the split that cuts only before these pieces, ascending.
SplitSpec KeepCuts(const FinePieces& pieces, const std::vector<int>& before);

}  // namespace pipewright
