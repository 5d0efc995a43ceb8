#include "base/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/files/missing_file.h"

namespace pipewright {

static std::string Reason() { return std::string("cannot be read: ") + std::strerror(errno); }

static size_t SizeOf(int fd, const std::string& path) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) throw Error(path, Reason());
  if (S_ISDIR(status.st_mode)) throw Error(path, "cannot be read: it is a folder");
  if (!S_ISREG(status.st_mode)) throw Error(path, "cannot be read: not a regular file");
  return static_cast<size_t>(status.st_size);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: does not wait for a writer if the file is a pipe.
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw Unreadable(path);
  try {
    size_ = SizeOf(fd, path);
    if (size_) {
      // Writable pages are not reserved, because a file may be larger than memory.
      void* map = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
      if (map == MAP_FAILED) throw Error(path, Reason());
      map_ = static_cast<char*>(map);
    }
  } catch (...) {
    close(fd);
    throw;
  }
  fd_ = fd;
}

MappedFile::~MappedFile() {
  if (map_) munmap(map_, size_);
  close(fd_);
}

void MappedFile::ReadOn(bool on) const {
  if (!map_) return;
  madvise(map_, size_, on ? MADV_NORMAL : MADV_RANDOM);
#ifdef MADV_HUGEPAGE
  // Linux then reads 2 MiB per fault; otherwise 128 KiB, partly page by page.
  if (on) madvise(map_, size_, MADV_HUGEPAGE);
#endif
}

void MappedFile::Read(uint64_t at, char* buffer, uint64_t size) const {
  if (at > size_ || size > size_ - at) throw Error(path_, "read past the end of the file");
  while (size) {
    ssize_t n = pread(fd_, buffer, size, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(path_, Reason());
    if (n == 0) throw Error(path_, "it became shorter while it was open");
    buffer += n, at += static_cast<uint64_t>(n), size -= static_cast<uint64_t>(n);
  }
}

}  // namespace pipewright
