// A buffer that the forward of a model writes in training.
#pragma once
#include <string>

namespace pipewright {

struct WrittenBuffer {
  std::string name;
  // With "buffers": "merge", the replicas of a stage get its value on one rank, but for rounding.
  bool merges = false;
};

}  // namespace pipewright
