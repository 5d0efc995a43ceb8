// Lays out weights in a buffer, on random files that are read and moved as the layout says.
#include "runtime/disk/weight_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>

#include "tests/temp_folder.h"

namespace pipewright {
namespace {

using Files = std::map<std::string, std::unique_ptr<BlockFile>>;

std::string Random(size_t size, std::mt19937& random) {
  std::string text(size, ' ');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

// Each piece is where the layout says, aligned to 64 bytes, after the blocks have been read and the
// pieces moved. Reads cost at most two blocks per stretch more than the payload.
TEST(WeightLayout, BringsEachPieceToItsPlace) {
  std::mt19937 random(3);
  auto below = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < 60; ++round) {
    std::map<std::string, std::string> text;
    Files files;
    std::vector<WeightPiece> pieces;
    uint64_t payload = 0;
    for (const std::string& name : {std::string("layout_a"), std::string("layout_b")}) {
      const std::string path = TempPath(name);
      text[path] = Random(30000, random);
      std::ofstream(path, std::ios::binary) << text[path];
      files[path] = std::make_unique<BlockFile>(path);
      const uint64_t step = round % 2 ? 64 : 1;
      for (uint64_t at = below(9000) / step * step; at < 25000;) {
        const uint64_t bytes = std::min<uint64_t>(below(6000), 30000 - at) / step * step;
        pieces.push_back({path, at, bytes});
        payload += bytes;
        at += bytes + below(2) * (below(5000) / step * step);
        if (bytes == 0) at += step;
      }
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    const WeightLayout layout = MakeWeightLayout(pieces, files);
    EXPECT_EQ(layout.payload, payload);
    EXPECT_EQ(layout.aligned, std::all_of(pieces.begin(), pieces.end(), [](const WeightPiece& p) {
                return p.offset % 64 == 0;
              }));
    const size_t room = (layout.size + kBlock - 1) / kBlock * kBlock + kBlock;
    std::unique_ptr<char, decltype(&std::free)> memory(
        static_cast<char*>(std::aligned_alloc(kBlock, room)), &std::free);
    uint64_t read = 0;
    for (const WeightStretch& s : layout.stretches) {
      uint64_t direct = 0, cached = 0;
      const uint64_t begin = BlockDown(s.begin);
      EXPECT_EQ(s.at % kBlock, 0u);
      s.file->Read(begin, s.end, kBlock, memory.get() + s.at, direct, cached);
      read += (s.end + kBlock - 1) / kBlock * kBlock - begin;
    }
    EXPECT_LE(read, payload + 2 * kBlock * layout.stretches.size());
    for (size_t m = 0; m < layout.moves.size(); ++m) {
      const auto& [stretch, within] = layout.in_stretch[m];
      EXPECT_EQ(layout.moves[m].from, layout.stretches[stretch].at + within);
      EXPECT_GE(layout.moves[m].to, layout.moves[m].from);
    }
    MoveWeights(layout, memory.get());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const WeightMove& move = layout.moves[layout.move[i]];
      EXPECT_EQ(move.to % 64, 0u);
      EXPECT_LE(move.to + move.bytes, layout.size);
      EXPECT_EQ(std::string(memory.get() + move.to, move.bytes),
                text[pieces[i].file].substr(pieces[i].offset, pieces[i].bytes));
    }
  }
}

TEST(WeightLayout, JoinsNeighborsInTheFile) {
  const std::string path = TempPath("layout_c");
  std::ofstream(path) << std::string(20000, 'x');
  Files files;
  files[path] = std::make_unique<BlockFile>(path);
  const WeightLayout layout =
      MakeWeightLayout({{path, 300, 50}, {path, 100, 200}, {path, 9000, 10}}, files);
  ASSERT_EQ(layout.stretches.size(), 2u);
  EXPECT_EQ(layout.stretches[0].begin, 100u);
  EXPECT_EQ(layout.stretches[0].end, 350u);
  EXPECT_EQ(layout.stretches[1].at, kBlock);
  EXPECT_EQ(layout.move, (std::vector<size_t>{1, 0, 2}));
  EXPECT_EQ(layout.moves[0].to, 128u);  // 100, on the next boundary
  EXPECT_EQ(layout.moves[1].to, 384u);  // 128 + 200, on the next boundary
  EXPECT_EQ(MakeWeightLayout({}, files).size, 0u);
}

}  // namespace
}  // namespace pipewright
