// Packages that are cut anew, as tune found best.
#pragma once
#include <vector>

#include "formats/conf.h"

namespace pipewright {

// Returns the first module of every run of modules in one stage, except the first run.
std::vector<int> StartsOfRuns(const Conf& conf);

// Returns the conf for a package in which each such run is one module.
Conf ConfOfRuns(const Conf& conf);

}  // namespace pipewright
