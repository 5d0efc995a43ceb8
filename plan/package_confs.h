// The confs of a package before anybody has partitioned it.
#pragma once
#include <map>
#include <string>

namespace pipewright {

// Text by name in conf/, as `compile` writes them: modules in order shared out to `ranks`.
std::map<std::string, std::string> PackageConfs(int modules, int ranks);

// Those of the package in `folder`, for the ranks that it was compiled for; none where its
// dp_conf.json does not say.
std::map<std::string, std::string> PackageConfs(const std::string& folder, int modules);

}  // namespace pipewright
