#include "runtime/disk/weight_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/error.h"
#include "plan/plan_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

std::string MakeFile(const std::string& path, size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::string bytes(size, 0);
  for (char& c : bytes) c = static_cast<char>(random());
  std::ofstream(path, std::ios::binary) << bytes;
  int fd = open(path.c_str(), O_RDONLY);
  fsync(fd);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);  // cold, if the file system complies
  close(fd);
  return bytes;
}

void Sweep(WeightStream& stream, const std::vector<Action>& actions,
           const std::map<int, std::vector<WeightPiece>>& stages,
           const std::map<std::string, std::string>& contents) {
  for (const Action& a : actions) {
    if (a.kind == ActionKind::kLoad) stream.Load(a.stage);
    if (a.kind == ActionKind::kEvict) stream.Evict(a.stage);
    if (a.kind != ActionKind::kForward) continue;
    const std::vector<char*>& data = stream.Wait(a.stage);
    const std::vector<WeightPiece>& pieces = stages.at(a.stage);
    ASSERT_EQ(data.size(), pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      ASSERT_EQ(reinterpret_cast<uintptr_t>(data[i]) % 64, 0u);
      ASSERT_TRUE(stream.Holds(a.stage, data[i]));
      ASSERT_EQ(std::string(data[i], pieces[i].bytes),
                contents.at(pieces[i].file).substr(pieces[i].offset, pieces[i].bytes));
      std::memset(data[i], 1, pieces[i].bytes);  // the file must not see this
    }
  }
}

// Pieces at odd offsets, adjacent or not, from several files, empty, and up to a file's last byte.
TEST(WeightStream, BytesArriveAlignedAndAreCounted) {
  const std::string a = TempPath("a"), b = TempPath("b");
  const std::map<std::string, std::string> contents = {{a, MakeFile(a, 300'001, 1)},
                                                       {b, MakeFile(b, 20'000'000, 2)}};
  const std::map<int, std::vector<WeightPiece>> stages = {
      {0, {{a, 100, 4000}, {a, 4100, 17}, {a, 4117, 60'000}}},  // one stretch
      {1, {{b, 4096, 9'000'000}, {a, 299'000, 1001}}},
      {2, {{b, 19'999'999, 1}, {b, 12'345'678, 3}, {b, 0, 0}}},
      {3, {}},
  };
  const Plan plan = ReadPlan(
      "0LOAD,1LOAD,0F0,0F1,0EVICT,2LOAD,1F0,1F1,1EVICT,3LOAD,2F0,2F1,2EVICT,3F0,3F1,3EVICT\n",
      "plan");
  const std::vector<Action>& actions = plan.ranks[0];
  WeightStream stream({actions}, stages);
  EXPECT_EQ(stream.buffers().size(), 2u);  // two at once
  const uint64_t payload = 64'017 + 9'001'001 + 4;
  for (uint64_t sweep = 1; sweep <= 2; ++sweep) {
    std::vector<Action> once = actions;
    // Microbatches after the first would find what the previous one wrote.
    std::erase_if(once, [](const Action& x) { return x.microbatch > 0; });
    Sweep(stream, once, stages, contents);
    const StreamStats stats = stream.stats();
    EXPECT_EQ(stats.payload, sweep * payload);
    // Five stretches, and at most two blocks for each.
    EXPECT_GE(stats.direct + stats.cached, sweep * payload);
    EXPECT_LE(stats.direct + stats.cached, sweep * (payload + 5 * 2 * kBlock));
    if (stats.counted_reads) {
      EXPECT_EQ(stats.counted_reads, stats.direct + stats.cached);
    }
    EXPECT_LE(stats.counted_disk, stats.counted_reads + sweep * 5 * 2 * kBlock);
  }
  const uint64_t largest = 9'001'001 + 2 * 2 * kBlock;
  uint64_t buffers = 0;
  for (uint64_t size : stream.buffers()) buffers += size;
  EXPECT_LE(buffers, 2 * largest);
}

// Stages that need several reads, with pieces across the boundaries of reads, while the next stage
// is requested.
TEST(WeightStream, LargeStages) {
  const std::string a = TempPath("large_a"), b = TempPath("large_b");
  const std::map<std::string, std::string> contents = {{a, MakeFile(a, 70'000'001, 4)},
                                                       {b, MakeFile(b, 25'000'000, 5)}};
  const std::map<int, std::vector<WeightPiece>> stages = {
      {0, {{a, 33, 20'000'000}, {a, 20'000'033, 49'999'968}}},  // one stretch, up to the last byte
      {1, {{b, 4096, 24'000'000}, {a, 1000, 17'000'000}, {a, 64'000'000, 5}}},
      {2, {{b, 1, 8'388'607}, {b, 8'388'608, 16'611'392}}},
  };
  const Plan plan =
      ReadPlan("0LOAD,1LOAD,0F0,0EVICT,2LOAD,1F0,1EVICT,2F0,2EVICT\n", "plan");
  WeightStream stream({plan.ranks[0]}, stages);
  const uint64_t payload = 69'999'968 + 41'000'005 + 24'999'999;
  for (uint64_t sweep = 1; sweep <= 3; ++sweep) {
    Sweep(stream, plan.ranks[0], stages, contents);
    const StreamStats stats = stream.stats();
    EXPECT_EQ(stats.payload, sweep * payload);
    EXPECT_EQ(stats.mapped, 0u);  // no piece lies on a boundary, or not all of a stage's
    EXPECT_GE(stats.direct + stats.cached, sweep * payload);
    EXPECT_LE(stats.direct + stats.cached, sweep * (payload + 5 * 2 * kBlock));
    if (stats.counted_reads) {
      EXPECT_EQ(stats.counted_reads, stats.direct + stats.cached);
    }
    EXPECT_GT(stats.reading, 0);
  }
  uint64_t buffers = 0;
  for (uint64_t size : stream.buffers()) buffers += size;
  EXPECT_LE(buffers, 69'999'968 + 41'000'005 + 5 * 2 * kBlock);
}

// It can end at any time: while reads are in progress, and others wait.
TEST(WeightStream, EndsWhileItReads) {
  const std::string a = TempPath("ends_a");
  MakeFile(a, 60'000'001, 6);
  const std::map<int, std::vector<WeightPiece>> stages = {{0, {{a, 33, 40'000'000}}},
                                                          {1, {{a, 4097, 50'000'000}}}};
  const Plan plan = ReadPlan("0LOAD,1LOAD,0F0,0EVICT,1F0,1EVICT\n", "plan");
  for (int i = 0; i < 20; ++i) {
    WeightStream stream({plan.ranks[0]}, stages);
    stream.Load(0);
    stream.Load(1);
    if (i % 2) stream.Wait(0);
  }
}

// Files that are completely in the page cache are used there, and writes do not reach the file.
static bool IsCached(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY);
  const size_t size = std::filesystem::file_size(path);
  void* map = mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0);
  std::vector<unsigned char> pages(size / 4096 + 1);
  const bool told = mincore(map, size, pages.data()) == 0;
  munmap(map, size);
  close(file);
  pages.pop_back();
  return told && std::all_of(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; });
}

TEST(WeightStream, NoCopyOfWhatIsCached) {
  const std::string path = TempPath("cached");
  std::string bytes(1 << 20, 'x');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 7);
  std::ofstream(path, std::ios::binary) << bytes;  // cached by being written
  const std::map<int, std::vector<WeightPiece>> stages = {
      {0, {{path, 64, 5000}, {path, 8192, 100'000}, {path, (1 << 20) - 64, 64}, {path, 128, 0}}},
      {1, {{path, 65, 5000}}}};
  const Plan plan = ReadPlan("0LOAD,1LOAD,0F0,0EVICT,1F0,1EVICT\n", "plan");
  WeightStream stream({plan.ranks[0], plan.ranks[0]}, stages);
  for (size_t sweep = 0; sweep < 4; ++sweep) {
    if (sweep == 2) stream.Follow(1);
    Sweep(stream, plan.ranks[0], stages, {{path, bytes}});
  }
  const StreamStats stats = stream.stats();
  EXPECT_EQ(stats.payload, 4 * (105'064 + 5000));
  EXPECT_GE(stats.mapped + stats.cached + stats.direct, stats.payload);
  if (!IsCached(path)) GTEST_SKIP() << "the file that was just written is not in the page cache";
  EXPECT_EQ(stats.mapped, 4 * 105'064);
}

// Pages that the system has evicted meanwhile are read again.
TEST(WeightStream, NoCopyOfWhatIsMostlyCached) {
  const std::string path = TempPath("mostly");
  std::string bytes(1 << 20, 'x');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 7);
  std::ofstream(path, std::ios::binary) << bytes;
  const std::map<int, std::vector<WeightPiece>> stages = {{0, {{path, 0, 1 << 20}}}};
  const Plan plan = ReadPlan("0LOAD,0F0,0EVICT\n", "plan");
  WeightStream stream({plan.ranks[0]}, stages);
  const int file = open(path.c_str(), O_RDWR);
  fsync(file);
  if (!IsCached(path)) GTEST_SKIP() << "the file that was just written is not in the page cache";
  posix_fadvise(file, 4 << 16, 1 << 16, POSIX_FADV_DONTNEED);
  close(file);
  Sweep(stream, plan.ranks[0], stages, {{path, bytes}});
  EXPECT_EQ(stream.stats().mapped, 1 << 20);
}

// If a mapped file has become shorter, reading its last pages would end the process.
TEST(WeightStream, ShorterThanItWas) {
  const std::string path = TempPath("shorter");
  std::ofstream(path, std::ios::binary) << std::string(1 << 20, 'x');
  WeightStream stream({ReadPlan("0LOAD,0F0,0EVICT\n", "plan").ranks[0]},
                      {{0, {{path, 0, 1 << 20}}}});
  std::filesystem::resize_file(path, 15 << 16);
  stream.Load(0);
  EXPECT_THROW(stream.Wait(0), Error);
}

// Once the file is mapped, only the process can be ended, with a message that says why.
TEST(WeightStreamDeathTest, ShorterWhileInUse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string path = TempPath("in_use");
  std::ofstream(path, std::ios::binary) << std::string(1 << 20, 'x');
  if (!IsCached(path)) GTEST_SKIP() << "the file that was just written is not in the page cache";
  auto use = [&] {
    WeightStream stream({ReadPlan("0LOAD,0F0,0EVICT\n", "plan").ranks[0]},
                        {{0, {{path, 0, 1 << 20}}}});
    stream.Load(0);
    const char* data = stream.Wait(0)[0];
    std::filesystem::resize_file(path, 1 << 16);
    for (size_t i = 0; i < 1 << 20; i += 4096)
      static_cast<void>(*static_cast<const volatile char*>(data + i));
  };
  EXPECT_DEATH(use(), "in_use.*: it became shorter, or cannot be read any more, while weights in it");
}

TEST(WeightStream, FailuresNameTheFile) {
  const std::string path = TempPath("short");
  MakeFile(path, 10'000, 3);
  const Plan plan = ReadPlan("0LOAD,0F0,0EVICT\n", "plan");
  EXPECT_THROW(WeightStream({plan.ranks[0]}, {{0, {{TempPath("none"), 0, 4}}}}), Error);
  WeightStream stream({plan.ranks[0]}, {{0, {{path, 9'000, 4'000}}}});
  stream.Load(0);
  try {
    stream.Wait(0);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
  }
  stream.Evict(0);
  EXPECT_THROW(stream.Wait(0), Error);
}

// One read of a large stage fails; the stage can be evicted, and the stage requested after it is
// read.
TEST(WeightStream, PartOfAStageFails) {
  const std::string path = TempPath("cut"), other = TempPath("whole");
  MakeFile(path, 40'000'000, 6);
  const std::string bytes = MakeFile(other, 20'000'000, 7);
  const Plan plan = ReadPlan("0LOAD,1LOAD,0F0,0EVICT,1F0,1EVICT\n", "plan");
  WeightStream stream({plan.ranks[0]},
                      {{0, {{path, 1, 39'999'999}}}, {1, {{other, 1, 19'999'999}}}});
  std::filesystem::resize_file(path, 39'000'000);
  for (int i = 0; i < 2; ++i) {
    stream.Load(0);
    stream.Load(1);
    EXPECT_THROW(stream.Wait(0), Error);
    stream.Evict(0);
    EXPECT_EQ(std::string(stream.Wait(1)[0], 19'999'999), bytes.substr(1));
    stream.Evict(1);
  }
}

}  // namespace
}  // namespace pipewright
