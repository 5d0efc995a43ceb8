// The memory that this process has.
#pragma once
#include <cstdint>

namespace pipewright {

// Returns the bytes that are resident, or 0 if the system does not say. Takes a few microseconds.
int64_t ResidentBytes();

}  // namespace pipewright
