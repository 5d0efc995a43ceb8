// What runs read: no output may take its place.
#pragma once
#include <string>
#include <vector>

#include "plan/job.h"
#include "plan/manifest.h"

namespace pipewright {

std::vector<std::string> PackageFiles(const std::string& package, const Manifest& manifest);
// With the job and its data.
std::vector<std::string> RunFiles(const std::string& package, const Manifest& manifest,
                                  const Job& job);

}  // namespace pipewright
