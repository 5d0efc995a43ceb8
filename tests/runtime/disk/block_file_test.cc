// Reads and maps files, and checks the message when a mapped file becomes shorter.
#include "runtime/disk/block_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "runtime/disk/mapped_pages.h"
#include "tests/error_text.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

std::string Pattern(size_t size) {
  std::string text(size, ' ');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(i * 7 + i / 256);
  return text;
}

std::string Write(const std::string& name, const std::string& text) {
  const std::string path = TempPath(name);
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(BlockFile, ReadsUpToAnyEnd) {
  const std::string text = Pattern(3 * 4096 + 77);
  BlockFile file(Write("block", text));
  std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(4096, 4 * 4096)), &std::free);
  for (uint64_t begin : {0, 4096, 3 * 4096})
    for (uint64_t end : {size_t{begin}, size_t{begin} + 1, text.size() - 1, text.size()}) {
      if (end < begin) continue;
      uint64_t direct = 0, cached = 0;
      file.Read(begin, end, 4096, memory.get(), direct, cached);
      EXPECT_EQ(std::string(memory.get(), end - begin), text.substr(begin, end - begin));
      EXPECT_GE(direct + cached, end - begin);
    }
}

TEST(BlockFile, NamesMissingAndShortenedFiles) {
  const std::string none = TempPath("missing");
  EXPECT_EQ(ErrorOf([&] { BlockFile missing(none); }),
            none + ": cannot be read: No such file or directory");
  const std::string path = Write("short", Pattern(8192));
  BlockFile file(path);
  ASSERT_EQ(truncate(path.c_str(), 5000), 0);
  std::unique_ptr<char, decltype(&std::free)> memory(
      static_cast<char*>(std::aligned_alloc(4096, 8192)), &std::free);
  uint64_t direct = 0, cached = 0;
  EXPECT_EQ(ErrorOf([&] { file.Read(0, 8192, 4096, memory.get(), direct, cached); }),
            path + ": it became shorter while it was open");
  EXPECT_EQ(file.MapCached(0, 8192), nullptr);
}

TEST(BlockFile, MapsWhatIsCachedAndKeepsTheFileAsItIs) {
  const std::string text = Pattern(5 * 4096), path = Write("map", text);
  BlockFile file(path);
  EXPECT_EQ(file.MapCached(0, text.size() + 1), nullptr) << "past the end";
  EXPECT_EQ(file.MapCached(4096, 4096), nullptr) << "nothing";
  char* map = file.MapCached(4096, text.size());
  if (!map) GTEST_SKIP() << "this system does not tell what is cached";
  EXPECT_EQ(std::string(map, text.size() - 4096), text.substr(4096));
  map[0] = static_cast<char>(map[0] + 1);
  BlockFile::Unmap(map, text.size() - 4096);
  std::ifstream in(path, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), text);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The handler of RememberPages names the file of the range that was hit, and no other. The signal
// still ends the process.
TEST(MappedPagesDeathTest, NamesTheFileOfTheAccess) {
  const std::string text = Pattern(8192), path = Write("lost", text);
  auto access = [&](bool forget) {
    static const char other[4096] = {};
    RememberPages(other, sizeof other, "/other/file");
    BlockFile file(path);
    char* map = file.MapCached(0, 8192);
    if (!map) std::raise(SIGBUS);
    if (forget) ForgetPages(map);
    if (truncate(path.c_str(), 0) != 0) std::abort();
    static_cast<void>(*static_cast<volatile char*>(map + 4096));
  };
  EXPECT_EXIT(access(true), testing::KilledBySignal(SIGBUS), "^$");
  Write("lost", text);
  char* mapped = BlockFile(path).MapCached(0, 8192);
  if (!mapped) GTEST_SKIP() << "nothing is mapped on this system";
  BlockFile::Unmap(mapped, 8192);
  EXPECT_EXIT(access(false), testing::KilledBySignal(SIGBUS),
              path + ": it became shorter, or cannot be read any more, while weights in it were");
}
#endif

}  // namespace
}  // namespace pipewright
