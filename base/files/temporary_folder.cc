#include "base/files/temporary_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace pipewright {

TemporaryFolder::TemporaryFolder(const std::string& parent, const std::string& name)
    : path_(parent + "/" + name + "XXXXXX") {
  if (!mkdtemp(path_.data()))
    throw Error(parent, std::string("a folder cannot be made in it: ") + std::strerror(errno));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace pipewright
