// Prints JSON for commands.
#pragma once
#include <iostream>

#include "base/json.h"

namespace pipewright {

inline void PrintJson(const Json& json) { std::cout << json.dump(2) << "\n"; }

}  // namespace pipewright
