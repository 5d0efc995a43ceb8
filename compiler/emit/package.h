// Writes packages: code, weights, manifest and confs in one folder.
#pragma once
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "passes/split/bodies.h"

namespace pipewright {

struct PackageOptions {
  // The folder. An existing package is replaced if it was not edited; anything else is refused.
  std::string output;
  int ranks = 0;       // number of ranks of the confs; 0: one per module
  bool force = false;  // also replace a package that was edited by hand
};

// Throws Error if WritePackage would refuse the output, or if it is or contains one of the files
// `read`. Callers check this before long work.
void CheckReplaceable(const PackageOptions& options, const std::vector<std::string>& read);

// Writes to a temporary folder beside `output` and renames it. Returns the manifest. Throws Error.
Manifest WritePackage(const Model& model, const std::vector<ModuleBody>& bodies,
                      const PackageOptions& options);

// Returns the manifest of the modules, without hashes of their code.
Manifest MakeManifest(const Model& model, const std::vector<ModuleBody>& bodies);

}  // namespace pipewright
