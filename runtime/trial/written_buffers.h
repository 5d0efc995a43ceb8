// Finds the buffers that forward writes in training: running statistics, moving averages, counts.
#pragma once
#include <string>
#include <vector>

#include "formats/manifest.h"
#include "formats/written_buffer.h"

namespace pipewright {

// Reads the code of all modules, and none of their weights. Throws Error.
std::vector<WrittenBuffer> WrittenBuffers(const std::string& package, const Manifest& manifest);

}  // namespace pipewright
