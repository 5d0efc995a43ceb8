// Tests reading of files that are empty.
#include "base/files/read_file.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "base/error.h"
#include "tests/temp_folder.h"

namespace pipewright {
namespace {

TEST(ReadFile, AnEmptyFileIsNoFolder) {
  const std::string path = TempPath("empty");
  WriteFile(path, "");
  errno = EISDIR;  // of an earlier call
  EXPECT_EQ(ReadFile(path), "");
  EXPECT_THROW(ReadFile(TempPath(".")), Error);
}

}  // namespace
}  // namespace pipewright
