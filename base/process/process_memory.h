// Measures the memory of this process.
#pragma once
#include <cstdint>

namespace pipewright {

// Returns the bytes that are resident, or 0 if the system does not say. Takes a few microseconds.
int64_t ResidentBytes();

}  // namespace pipewright
