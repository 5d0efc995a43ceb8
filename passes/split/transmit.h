// Sends shared parameters from the one module that holds them to the others that use them.
#pragma once
#include <string>
#include <vector>

#include "passes/split/split.h"

namespace pipewright {

struct SharedSpec {
  bool transmit = false;           // all of them
  std::vector<std::string> names;  // otherwise these; any of a weight's names
};

// Parses "replicate", "transmit", "transmit:NAME,...". Throws UsageError.
SharedSpec ParseShared(const std::string& text);

// Keeps every chosen weight that several modules use in the first of them, which outputs it after
// its other values; the gradient comes back the same way. Throws Error for unknown names and for
// weights that are written in place.
void TransmitShared(Model& model, ModuleAssignment& assignment, const SharedSpec& spec);

}  // namespace pipewright
