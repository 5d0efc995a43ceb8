// Packages out: code, weights, manifest and confs in one folder.
#pragma once
#include <string>

#include "passes/bodies.h"
#include "plan/manifest.h"

namespace pipewright {

struct PackageOptions {
  std::string output;  // the folder; a package that is there is replaced, anything else refused
  int ranks = 0;       // of the confs; 0: one a module
};

// Writes to a temporary folder beside `output` and renames it. Throws Error.
Manifest WritePackage(const Model& model, const std::vector<ModuleBody>& bodies,
                      const PackageOptions& options);

// What the manifest says of the modules, without hashes of their code.
Manifest MakeManifest(const Model& model, const std::vector<ModuleBody>& bodies);

}  // namespace pipewright
