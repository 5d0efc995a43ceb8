// Gives paths for the files of a test, in a folder of its own. All of them are removed when the
// process ends.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace pipewright {

inline std::string TempPath(const std::string& name) {
  struct Folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("pipewright_test_" + std::to_string(getpid()));
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static Folder process;
  std::filesystem::path folder = process.path;
  if (const auto* test = ::testing::UnitTest::GetInstance()->current_test_info())
    folder = folder / test->test_suite_name() / test->name();
  std::filesystem::create_directories(folder);
  return (folder / name).string();
}

}  // namespace pipewright
