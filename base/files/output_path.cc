#include "base/files/output_path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace pipewright {

int OpenDescriptor(const std::string& path) {
  if (path == "/dev/stdout") return STDOUT_FILENO;
  if (path == "/dev/stderr") return STDERR_FILENO;
  for (const std::string folder : {"/dev/fd/", "/proc/self/fd/"}) {
    const std::string number = path.starts_with(folder) ? path.substr(folder.size()) : "";
    if (!number.empty() && number.size() < 6 &&
        number.find_first_not_of("0123456789") == std::string::npos)
      return std::stoi(number);
  }
  return -1;
}

bool IsStream(const std::string& path) {
  struct stat there;
  return OpenDescriptor(path) >= 0 || (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode) &&
                                    !S_ISDIR(there.st_mode));
}

bool IsStandardOutput(const std::string& path) { return OpenDescriptor(path) == STDOUT_FILENO; }

void SyncOutput(const std::string& path) {
  if (path.empty() || IsStream(path)) return;
  const int fd = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  (void)fdatasync(fd);
  close(fd);
}

}  // namespace pipewright
