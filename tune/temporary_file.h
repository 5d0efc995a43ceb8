// Deletes a file when it goes out of scope.
#pragma once
#include <filesystem>
#include <string>

namespace pipewright {

struct TemporaryFile {
  std::string path;
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
};

}  // namespace pipewright
