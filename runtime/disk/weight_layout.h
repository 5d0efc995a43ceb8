// Computes the layout of an offloaded stage's weights in its buffer.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/disk/block_file.h"

namespace pipewright {

// Block size of reads: each contiguous stretch of a file costs at most two blocks more than its
// payload.
constexpr uint64_t kBlock = 4096;

// A weight as stored in a file, contiguous.
struct WeightPiece {
  std::string file;
  uint64_t offset = 0, bytes = 0;  // offset from the start of the file
};

inline uint64_t BlockDown(uint64_t at) { return at - at % kBlock; }

// A contiguous stretch of a file and its destination in the buffer.
struct WeightStretch {
  BlockFile* file = nullptr;
  uint64_t begin = 0, end = 0;  // in the file
  uint64_t at = 0;              // position of BlockDown(begin) in the buffer
};

// A move of a weight's bytes in the buffer, from where they are read to their final position.
struct WeightMove {
  uint64_t from = 0, to = 0, bytes = 0;  // in the buffer
};

struct WeightLayout {
  std::vector<WeightStretch> stretches;
  std::vector<WeightMove> moves;  // ascending; `to` is never below `from`
  std::vector<size_t> move;  // by piece
  // By move: the index of its stretch, and its offset from BlockDown(begin) there.
  std::vector<std::pair<size_t, uint64_t>> in_stretch;
  bool aligned = true;  // the pieces are aligned in their files, so they can be used in place
  uint64_t payload = 0, size = 0;
};

WeightLayout MakeWeightLayout(const std::vector<WeightPiece>& pieces,
                              const std::map<std::string, std::unique_ptr<BlockFile>>& files);

// Moves each piece to its 64-byte boundary, once all stretches have been read into the buffer.
void MoveWeights(const WeightLayout& layout, char* buffer);

}  // namespace pipewright
