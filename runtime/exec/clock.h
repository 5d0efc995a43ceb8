// Reads the clock used to measure durations.
#pragma once
#include <chrono>

namespace pipewright {

// Returns seconds on the steady clock.
inline double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace pipewright
