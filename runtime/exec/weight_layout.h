// How the weights of an offloaded stage lie in its buffer.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/exec/block_file.h"

namespace pipewright {

// Reads are of whole blocks, at most two more than the payload for each stretch of a file without a
// gap.
constexpr uint64_t kBlock = 4096;

// One weight as it lies in a file, contiguous.
struct WeightPiece {
  std::string file;
  uint64_t offset = 0, bytes = 0;  // from the start of the file
};

inline uint64_t BlockDown(uint64_t at) { return at - at % kBlock; }

// A stretch of a file without a gap, and where it goes in the buffer.
struct WeightStretch {
  BlockFile* file = nullptr;
  uint64_t begin = 0, end = 0;  // in the file
  uint64_t at = 0;              // of BlockDown(begin), in the buffer
};

// A weight's bytes as they arrive, and where they are to be.
struct WeightMove {
  uint64_t from = 0, to = 0, bytes = 0;  // in the buffer
};

struct WeightLayout {
  std::vector<WeightStretch> stretches;
  std::vector<WeightMove> moves;   // ascending; `to` is never before `from`
  std::vector<size_t> move;  // by piece
  // By move: its stretch, and where in that one from BlockDown(begin) on.
  std::vector<std::pair<size_t, uint64_t>> in_stretch;
  bool aligned = true;  // the pieces in their files, so that they can be used there
  uint64_t payload = 0, size = 0;
};

WeightLayout MakeWeightLayout(const std::vector<WeightPiece>& pieces,
                              const std::map<std::string, std::unique_ptr<BlockFile>>& files);

// Once all stretches have arrived in the buffer: each piece to its 64-byte boundary.
void MoveWeights(const WeightLayout& layout, char* buffer);

}  // namespace pipewright
