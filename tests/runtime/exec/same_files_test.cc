#include "runtime/exec/same_files.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/files/read_file.h"
#include "base/text.h"
#include "runtime/transport/thread_transport.h"
#include "tests/temp_folder.h"

namespace pipewright {

// Returns what every rank throws, or "" if they agree.
static std::string Refusal(const std::vector<std::vector<Found>>& by_rank) {
  std::vector<std::string> texts(by_rank.size());
  RunThreads(static_cast<int>(by_rank.size()), [&](Transport& t) {
    try {
      AgreeOn(t, by_rank[t.rank()]);
    } catch (const AgreedError& e) {
      texts[t.rank()] = e.what();
    }
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  return texts[0];
}

TEST(SameFiles, RanksMayReadDifferentOnes) {
  const std::string a = TempPath("a"), b = TempPath("b");
  WriteFile(a, "one"), WriteFile(b, "two");
  EXPECT_EQ(Refusal({{FoundFile("a", a, false)}, {}, {FoundFile("b", b, false)}}), "");
  // Copies are the same, whatever their names and times.
  WriteFile(b, "one");
  std::filesystem::last_write_time(b, std::filesystem::file_time_type::min());
  EXPECT_EQ(Refusal({{FoundFile("a", a, false)}, {FoundFile("a", b, false)}}), "");
}

TEST(SameFiles, NamesTheFileTheRanksAndWhatEachFound) {
  const std::string a = TempPath("a"), b = TempPath("b");
  WriteFile(a, "one"), WriteFile(b, "three");
  EXPECT_EQ(Refusal({{}, {FoundFile("k", a, false)}, {FoundFile("k", b, false)}}),
            a + ": not the same on every rank: rank 1 found 3 bytes with the hash " +
                HexHash("one") + ", rank 2 5 bytes with the hash " + HexHash("three") + " (" + b +
                ")\n  give every host the same file, or name one that all hosts share");
}

TEST(SameFiles, BlocksOfLargeFilesAreCompared) {
  const std::string path = TempPath("large");
  std::string bytes(3 << 20, 'x');
  auto found = [&](bool whole) {
    WriteFile(path, bytes);
    return FoundFile("k", path, whole).what;
  };
  const std::string sampled = found(false), whole = found(true);
  bytes.back() = 'y';
  EXPECT_NE(found(false), sampled);
  bytes.back() = 'x', bytes.front() = 'y';
  EXPECT_NE(found(false), sampled);
  bytes.front() = 'x', bytes[5000] = 'y';  // between two blocks
  EXPECT_EQ(found(false), sampled);
  EXPECT_NE(found(true), whole);
}

TEST(SameFiles, ComparesTheEnvironment) {
  const std::vector<Found> without = FoundEnvironment();
  setenv("ATEN_CPU_CAPABILITY", "default", 1);
  const std::vector<Found> with = FoundEnvironment();
  unsetenv("ATEN_CPU_CAPABILITY");
  EXPECT_EQ(Refusal({with, with}), "");
  EXPECT_EQ(Refusal({with, without}),
            "ATEN_CPU_CAPABILITY: not the same on every rank: rank 0 found \"default\", rank 1 no "
            "value\n  it changes how numbers are computed: set it to the same value on every host, "
            "as with "
            "mpirun -x ATEN_CPU_CAPABILITY");
}

}  // namespace pipewright
