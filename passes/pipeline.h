// The passes, in order.
#pragma once
#include "passes/bodies.h"
#include "passes/transmit.h"

namespace pipewright {

struct PipelineOptions {
  SplitSpec split;
  SharedSpec shared;
  std::string dump;  // folder for the graph after each pass that changed it; "": none
};

// From an imported model to the bodies of its modules, which point into `model.graph`. The graph is
// verified after each pass; when one fails, its input is left in `dump`. `warnings`: where those of
// the split go.
std::vector<ModuleBody> RunPasses(Model& model, const PipelineOptions& options,
                                  std::vector<std::string>* warnings = nullptr);

}  // namespace pipewright
