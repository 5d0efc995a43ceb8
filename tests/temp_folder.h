// Gives paths for files of a test: in a folder of this process, removed at its end.
#pragma once
#include <unistd.h>

#include <filesystem>
#include <string>

namespace pipewright {

inline std::string TempPath(const std::string& name) {
  struct Folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("pipewright_test_" + std::to_string(getpid()));
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static Folder folder;
  return (folder.path / name).string();
}

}  // namespace pipewright
