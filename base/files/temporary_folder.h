// Makes a folder for temporary files, and deletes it with all that is in it at the end.
#pragma once
#include <string>

namespace pipewright {

class TemporaryFolder {
 public:
  // Makes a new folder in `parent`, which must exist: its name begins with `name`. Throws Error.
  TemporaryFolder(const std::string& parent, const std::string& name);
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace pipewright
