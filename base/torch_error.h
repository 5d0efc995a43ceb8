// Turns what torch throws into text for people.
#pragma once
#include <string>

namespace pipewright {

// `what` of an exception of torch without the C++ backtrace that torch appends, addresses and the
// package of TorchScript's names, and empty lines around it.
std::string WithoutBacktrace(const std::string& what);

}  // namespace pipewright
