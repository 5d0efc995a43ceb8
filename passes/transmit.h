// Shared parameters that live in one module and are sent to the others.
#pragma once
#include <string>
#include <vector>

#include "passes/split.h"

namespace pipewright {

struct SharedSpec {
  bool transmit = false;           // all of them
  std::vector<std::string> names;  // else these; any of a weight's names
};

// "replicate", "transmit", "transmit:NAME,...". Throws UsageError.
SharedSpec ParseShared(const std::string& text);

// Every chosen weight that several modules use lives in the first of them, which hands it on as its
// last value; its gradient comes back along it. Throws Error: unknown names, weights that are
// written to in place.
void TransmitShared(Model& model, Assignment& assignment, const SharedSpec& spec);

}  // namespace pipewright
