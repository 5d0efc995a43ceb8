// Finds the buffers that forward writes in training: running statistics, moving averages, counts.
#pragma once
#include <string>
#include <vector>

#include "formats/manifest.h"

namespace pipewright {

struct WrittenBuffer {
  std::string name;
  // With "buffers": "merge", the replicas of a stage get its value on one rank, but for rounding.
  bool merges = false;
};

// Reads the code of all modules, and none of their weights. Throws Error.
std::vector<WrittenBuffer> WrittenBuffers(const std::string& package, const Manifest& manifest);

}  // namespace pipewright
