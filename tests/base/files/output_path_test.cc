#include "base/files/output_path.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "tests/temp_folder.h"

namespace pipewright {

TEST(OutputPath, NamesOfOpenFiles) {
  EXPECT_EQ(OpenDescriptor("/dev/stdout"), 1);
  EXPECT_EQ(OpenDescriptor("/dev/stderr"), 2);
  EXPECT_EQ(OpenDescriptor("/dev/fd/0"), 0);
  EXPECT_EQ(OpenDescriptor("/dev/fd/12345"), 12345);
  EXPECT_EQ(OpenDescriptor("/proc/self/fd/3"), 3);
}

TEST(OutputPath, OtherPathsAreNoDescriptors) {
  for (const char* path : {"", "out.json", "/dev/null", "/dev/fd", "/dev/fd/", "/dev/fd/-1",
                           "/dev/fd/1x", "/dev/fd/1/", "/dev/fd/123456", "/dev/fd/99999999999999",
                           "dev/fd/1", "/proc/self/fd/", "stdout"})
    EXPECT_EQ(OpenDescriptor(path), -1) << path;
}

TEST(OutputPath, OnlyItsNamesAreStandardOutput) {
  for (const char* path : {"/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"})
    EXPECT_TRUE(IsStandardOutput(path)) << path;
  for (const char* path : {"/dev/stderr", "/dev/fd/2", "-", "/dev/null"})
    EXPECT_FALSE(IsStandardOutput(path)) << path;
}

TEST(OutputPath, PipesAndDevicesAreStreams) {
  const std::string pipe = TempPath("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(IsStream(pipe));
  EXPECT_TRUE(IsStream("/dev/null"));
  EXPECT_TRUE(IsStream("/dev/stdout"));
  EXPECT_TRUE(IsStream("/dev/fd/77"));  // even if it is not open
}

TEST(OutputPath, FilesFoldersAndNewFilesAreNotStreams) {
  const std::string file = TempPath("file");
  std::ofstream(file) << "text";
  EXPECT_FALSE(IsStream(file));
  EXPECT_FALSE(IsStream(TempPath("")));
  EXPECT_FALSE(IsStream(TempPath("absent")));
  EXPECT_FALSE(IsStream(""));
}

}  // namespace pipewright
