// What torch throws, as text for people.
#pragma once
#include <string>

namespace pipewright {

// `what` without the C++ backtrace that torch appends and without empty lines around it.
std::string WithoutBacktrace(const std::string& what);

}  // namespace pipewright
