#include "plan/atomic_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "plan/text.h"
#include "tests/temp_folder.h"

namespace pipewright {

TEST(AtomicFile, HoldsWhatWasWrittenHoweverItWasCut) {
  constexpr size_t kBlock = 2 << 20;
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    const std::string path = TempPath("atomic");
    std::string all;
    {
      AtomicFile file(path);
      for (int i = random() % 6; i-- > 0;) {
        const size_t near[] = {random() % 40, kBlock - random() % 3, kBlock + random() % 3,
                               2 * kBlock - all.size() % kBlock, random() % (5 * kBlock)};
        std::string piece(near[random() % 5], '\0');
        for (char& c : piece) c = static_cast<char>(random());
        file.Write(piece);
        all += piece;
      }
      file.Commit();
    }
    ASSERT_TRUE(ReadFile(path) == all) << "round " << round << ", " << all.size() << " bytes";
  }
}

TEST(AtomicFile, LeavesNothingWithoutCommit) {
  const std::string path = TempPath("folder/atomic");
  CreateFolders(TempPath("folder"));
  WriteFile(path, "before");
  {
    AtomicFile file(path);
    file.Write(std::string(5 << 20, 'x'));
  }
  EXPECT_EQ(ReadFile(path), "before");
  const std::filesystem::directory_iterator files(TempPath("folder")), end;
  EXPECT_EQ(std::distance(files, end), 1);
}

}  // namespace pipewright
