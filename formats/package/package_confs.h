// Makes the initial confs of a package, before it is partitioned.
#pragma once
#include <map>
#include <string>

namespace pipewright {

// Returns the files of conf/ by name, as `compile` writes them: modules in order, divided among
// `ranks`.
std::map<std::string, std::string> PackageConfs(int modules, int ranks);

// Returns those of the package in `folder`, for the number of ranks that it was compiled for; empty
// if its dp_conf.json does not have it.
std::map<std::string, std::string> PackageConfs(const std::string& folder, int modules);

}  // namespace pipewright
