// Lists the keys that a job file may have.
#pragma once
#include <string>
#include <vector>

namespace pipewright {

const std::vector<std::string>& JobKeys();

}  // namespace pipewright
