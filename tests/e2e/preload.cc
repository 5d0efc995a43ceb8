// Preloaded (LD_PRELOAD) into a run, watches its changes to files under the folder WATCH_UNDER;
// under mpirun, only on rank WATCH_RANK if that is set.
// - A change opens a file for writing; writes, truncates, syncs, renames or removes a file; or
//   makes a folder. KILL_AT=N kills the process just before the N-th change (from 1).
// - SLOW_SYNC=S makes each sync of a file or folder S seconds longer.
// - WATCH_COUNT=FILE writes a summary there, one item per line: the number of changes, and then
//   "BYTES PATH" for each file that pread has read from.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

template <typename F>
F* Next(F*, const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

bool IsWatched(const std::string& path) {
  static const char* const under = std::getenv("WATCH_UNDER");
  static const bool watches = [] {
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
    const char* const watched = std::getenv("WATCH_RANK");
    return under && (!watched || (rank && std::strcmp(rank, watched) == 0));
  }();
  return watches && path.starts_with(under);
}

std::string PathOf(int fd) {
  char link[40], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path);
  return {path, static_cast<size_t>(size < 0 ? 0 : size)};
}

struct Counts {
  std::atomic<long> changes{0};
  std::mutex mutex;
  std::map<std::string, long> bytes_read;  // by path
};
Counts& counts = *new Counts;  // used for as long as the process lives

struct AtEnd {
  ~AtEnd() {
    const char* const file = std::getenv("WATCH_COUNT");
    if (!file || (counts.changes == 0 && counts.bytes_read.empty())) return;
    if (std::FILE* out = std::fopen(file, "w")) {
      std::fprintf(out, "%ld\n", counts.changes.load());
      for (const auto& [path, bytes] : counts.bytes_read)
        std::fprintf(out, "%ld %s\n", bytes, path.c_str());
      std::fclose(out);
    }
  }
} at_end;

void Changes(const std::string& path) {
  static const char* const at = std::getenv("KILL_AT");
  if (IsWatched(path) && ++counts.changes == (at ? std::atol(at) : -1)) kill(getpid(), SIGKILL);
}

void Reads(int fd, ssize_t bytes) {
  const std::string path = PathOf(fd);
  if (bytes <= 0 || !IsWatched(path)) return;
  const std::lock_guard lock(counts.mutex);
  counts.bytes_read[path] += bytes;
}

template <typename Open>
int OpenBy(Open* next, const char* path, int flags, mode_t mode) {
  if ((flags & O_ACCMODE) != O_RDONLY) Changes(path);
  return next(path, flags, mode);
}

template <typename Open>
std::FILE* OpenBy(Open* next, const char* path, const char* mode) {
  if (*mode != 'r') Changes(path);
  return next(path, mode);
}

template <typename Read>
ssize_t ReadBy(Read* next, int fd, void* data, size_t size, off_t at) {
  const ssize_t bytes = next(fd, data, size, at);
  Reads(fd, bytes);
  return bytes;
}

}  // namespace

#define NEXT(name) static auto* const next = Next(&::name, #name)

extern "C" {

int open(const char* path, int flags, ...) {
  NEXT(open);
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return OpenBy(next, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  NEXT(open64);
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return OpenBy(next, path, flags, mode);
}
std::FILE* fopen(const char* path, const char* mode) {
  NEXT(fopen);
  return OpenBy(next, path, mode);
}
std::FILE* fopen64(const char* path, const char* mode) {
  NEXT(fopen64);
  return OpenBy(next, path, mode);
}
ssize_t pread(int fd, void* data, size_t size, off_t at) {
  NEXT(pread);
  return ReadBy(next, fd, data, size, at);
}
ssize_t pread64(int fd, void* data, size_t size, off64_t at) {
  NEXT(pread64);
  return ReadBy(next, fd, data, size, at);
}
ssize_t write(int fd, const void* data, size_t size) {
  NEXT(write);
  Changes(PathOf(fd));
  return next(fd, data, size);
}
ssize_t writev(int fd, const iovec* pieces, int count) {
  NEXT(writev);
  Changes(PathOf(fd));
  return next(fd, pieces, count);
}
ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  NEXT(pwrite);
  Changes(PathOf(fd));
  return next(fd, data, size, offset);
}
int fsync(int fd) {
  NEXT(fsync);
  static const char* const slow = std::getenv("SLOW_SYNC");
  const std::string path = PathOf(fd);
  Changes(path);
  if (slow && IsWatched(path)) usleep(static_cast<useconds_t>(1e6 * std::atof(slow)));
  return next(fd);
}
int ftruncate(int fd, off_t size) noexcept {
  NEXT(ftruncate);
  Changes(PathOf(fd));
  return next(fd, size);
}
int rename(const char* from, const char* to) noexcept {
  NEXT(rename);
  Changes(to);
  return next(from, to);
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to,
              unsigned flags) noexcept {
  NEXT(renameat2);
  Changes(to);
  return next(from_folder, from, to_folder, to, flags);
}
int unlink(const char* path) noexcept {
  NEXT(unlink);
  Changes(path);
  return next(path);
}
int unlinkat(int folder, const char* path, int flags) noexcept {
  NEXT(unlinkat);
  Changes(folder == AT_FDCWD ? path : PathOf(folder));
  return next(folder, path, flags);
}
int remove(const char* path) noexcept {
  NEXT(remove);
  Changes(path);
  return next(path);
}
int mkdir(const char* path, mode_t mode) noexcept {
  NEXT(mkdir);
  Changes(path);
  return next(path, mode);
}

}  // extern "C"
