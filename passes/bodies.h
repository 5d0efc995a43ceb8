// The modules as they are written: what enters and leaves each.
#pragma once
#include "passes/split.h"

namespace pipewright {

struct ModuleBody {
  std::vector<torch::jit::Node*> nodes;                 // in order
  std::vector<torch::jit::Value*> inputs;               // in the order of their first use
  std::vector<torch::jit::Value*> outputs;              // in the order of their making
  std::vector<std::pair<size_t, std::string>> weights;  // index into Model::weights, and the name
                                                        // it has here; in the order of first use
  bool uses_device = false;
  int assigned = 0;                 // its number in the assignment; those left out have one too
  std::vector<std::string> covers;  // the outermost submodules that lie wholly here
  std::string reason;               // why it starts where it starts
  std::vector<std::string> notes;   // what the passes did in it
};

// Collects the bodies of a localised graph. Modules whose results nobody uses and that change no
// buffer are left out. A weight with several names has, in each module, the one that belongs to the
// submodule that uses it, else the first. Parameters and persistent buffers that nothing uses are
// held by the module that holds their neighbours, so that the state dict stays whole.
std::vector<ModuleBody> CollectBodies(const Model& model, const Assignment& assignment);

}  // namespace pipewright
