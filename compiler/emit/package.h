// Packages out: code, weights, manifest and confs in one folder.
#pragma once
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "passes/split/bodies.h"

namespace pipewright {

struct PackageOptions {
  // The folder. A package that is there, as compiled, is replaced; anything else is refused.
  std::string output;
  int ranks = 0;       // of the confs; 0: one a module
  bool force = false;  // replace a package that was edited by hand, too
};

// Refuses an output that WritePackage would refuse, or that is or holds one of the files that are
// `read`. For callers, before long work. Throws Error.
void CheckReplaceable(const PackageOptions& options, const std::vector<std::string>& read);

// Writes to a temporary folder beside `output` and renames it. Throws Error.
Manifest WritePackage(const Model& model, const std::vector<ModuleBody>& bodies,
                      const PackageOptions& options);

// Returns the manifest of the modules, without hashes of their code.
Manifest MakeManifest(const Model& model, const std::vector<ModuleBody>& bodies);

}  // namespace pipewright
