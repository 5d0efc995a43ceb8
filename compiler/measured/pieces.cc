#include "compiler/measured/pieces.h"

#include <string>

#include "base/error.h"

namespace pipewright {

FinePieces CompilePieces(CompileOptions compile, const std::function<Model()>& read) {
  std::string failure;  // of the finest pieces
  for (int depth : {0, 3, 2, 1}) {
    FinePieces pieces;
    pieces.split.kind = SplitSpec::kFine;
    pieces.split.text = "pieces";
    pieces.split.depth = depth;
    compile.passes.split = pieces.split;
    try {
      Model model = read();
      pieces.cut_before = Compile(model, compile).assigned;
      return pieces;
    } catch (const Error& error) {
      if (failure.empty()) failure = error.what();
    }
  }
  throw Error("cuts between submodules", failure,
              "compile the model with another --split, and tune the package");
}

SplitSpec KeepCuts(const FinePieces& pieces, const std::vector<int>& before) {
  SplitSpec split = pieces.split;
  split.keep_all = false;
  for (int piece : before) split.keep.push_back(pieces.cut_before[static_cast<size_t>(piece)]);
  return split;
}

}  // namespace pipewright
