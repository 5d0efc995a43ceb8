// Returns the message of the error that a call throws.
#pragma once
#include <string>

#include "base/error.h"

namespace pipewright {

// Returns the message of the Error that `call` throws, or "" if it returns. Other exceptions pass.
template <class Thrown = Error, class Call>
std::string ErrorOf(const Call& call) {
  try {
    call();
  } catch (const Thrown& e) {
    return e.what();
  }
  return "";
}

}  // namespace pipewright
