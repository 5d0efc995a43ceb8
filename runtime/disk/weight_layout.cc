#include "runtime/disk/weight_layout.h"

#include <algorithm>
#include <cstring>
#include <tuple>

namespace pipewright {

namespace {

constexpr uint64_t kAlign = 64;  // alignment of a tensor in memory

uint64_t Up(uint64_t at, uint64_t to) { return (at + to - 1) / to * to; }

}  // namespace

WeightLayout MakeWeightLayout(const std::vector<WeightPiece>& pieces,
                              const std::map<std::string, std::unique_ptr<BlockFile>>& files) {
  WeightLayout layout;
  std::vector<size_t> order(pieces.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::tie(pieces[a].file, pieces[a].offset, pieces[a].bytes, a) <
           std::tie(pieces[b].file, pieces[b].offset, pieces[b].bytes, b);
  });
  layout.move.resize(pieces.size());
  uint64_t free = 0;  // first free byte behind the placed pieces
  for (size_t i : order) {
    const WeightPiece& piece = pieces[i];
    BlockFile* file = files.at(piece.file).get();
    // Two weights may share bytes, which are then read twice.
    if (layout.stretches.empty() || layout.stretches.back().file != file ||
        layout.stretches.back().end != piece.offset) {
      free = Up(free, kBlock);
      layout.stretches.push_back({file, piece.offset, piece.offset, free});
    }
    WeightStretch& stretch = layout.stretches.back();
    stretch.end += piece.bytes;
    const uint64_t within = piece.offset - BlockDown(stretch.begin);
    WeightMove move;
    move.from = stretch.at + within;
    move.to = Up(std::max(move.from, free), kAlign);
    move.bytes = piece.bytes;
    free = move.to + move.bytes;
    layout.in_stretch.emplace_back(layout.stretches.size() - 1, within);
    layout.aligned = layout.aligned && piece.offset % kAlign == 0;
    layout.move[i] = layout.moves.size();
    layout.moves.push_back(move);
    layout.payload += piece.bytes;
    const uint64_t blocks = Up(stretch.end, kBlock) - BlockDown(stretch.begin);
    layout.size = std::max({layout.size, free, stretch.at + blocks});
  }
  return layout;
}

void MoveWeights(const WeightLayout& layout, char* buffer) {
  // Moves from last to first, so that no piece is overwritten before it has moved.
  for (size_t i = layout.moves.size(); i-- > 0;) {
    const WeightMove& move = layout.moves[i];
    if (move.from != move.to) std::memmove(buffer + move.to, buffer + move.from, move.bytes);
  }
}

}  // namespace pipewright
