// Runs the passes in order.
#pragma once
#include "passes/split/bodies.h"
#include "passes/split/transmit.h"

namespace pipewright {

struct PipelineOptions {
  SplitSpec split;
  SharedSpec shared;
  std::string dump;  // folder for the graph after each pass that changed it; "": none
};

// Turns an imported model into the bodies of its modules, which point into `model.graph`. Verifies
// the graph after each pass; if one fails, its input is left in `dump`. Appends warnings for the
// user to `warnings` unless it is null.
std::vector<ModuleBody> RunPasses(Model& model, const PipelineOptions& options,
                                  std::vector<std::string>* warnings = nullptr);

}  // namespace pipewright
