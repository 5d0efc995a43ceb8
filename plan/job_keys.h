// What a job file may say.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

const std::vector<std::string>& JobKeys();

}  // namespace pipewright
