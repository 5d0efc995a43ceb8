// The clock that durations are measured by.
#pragma once
#include <chrono>

namespace pipewright {

// Seconds on the steady clock.
inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace pipewright
