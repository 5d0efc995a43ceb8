#include "runtime/disk/block_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "runtime/disk/mapped_pages.h"

namespace pipewright {

namespace {

// Bytes per query of the page cache.
constexpr uint64_t kPiece = 8 << 20;

std::string Reason() { return std::string("cannot be read: ") + std::strerror(errno); }

// Returns how many pages of [begin, end) are in the page cache, or -1 if the system cannot tell.
// Uses cachestat(2), which is newer than the C library's headers and fifty times as fast as
// mincore(2).
int64_t CachedPages(int fd, uint64_t begin, uint64_t end) {
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
  constexpr long kCachestat = 451;
  struct {
    uint64_t offset, size;
  } range = {begin, end - begin};
  struct {
    uint64_t cached, dirty, written, evicted, recently_evicted;
  } found = {};
  if (syscall(kCachestat, fd, &range, &found, 0u) == 0) return static_cast<int64_t>(found.cached);
#endif
  return -1;
}

// Returns true for a file on overlayfs, whose cached pages belong to the file of a lower layer.
bool OfOverlay(int fd) {
#ifdef __linux__
  constexpr long kOverlay = 0x794c7630;  // OVERLAYFS_SUPER_MAGIC
  struct statfs system = {};
  return fstatfs(fd, &system) != 0 || static_cast<long>(system.f_type) == kOverlay;
#else
  return false;
#endif
}

}  // namespace

BlockFile::BlockFile(const std::string& path) : path_(path) {
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status = {};
  if (fd_ < 0 || fstat(fd_, &status) != 0) {
    std::string reason = Reason();
    if (fd_ >= 0) close(fd_);
    throw Error(path, reason);
  }
  size_ = static_cast<uint64_t>(status.st_size);
  overlay_ = OfOverlay(fd_);
#ifdef O_DIRECT
  direct_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  // If the file was replaced between the two opens, the first one counts.
  struct stat other = {};
  if (direct_ >= 0 && (fstat(direct_, &other) != 0 || other.st_ino != status.st_ino ||
                       other.st_dev != status.st_dev)) {
    close(direct_);
    direct_ = -1;
  }
#endif
}

BlockFile::~BlockFile() {
  close(fd_);
  if (direct_ >= 0) close(direct_);
}

// Does not touch the pages.
double BlockFile::Cached(uint64_t begin, uint64_t end, double unknown) const {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  begin -= begin % page;
  end = std::min(end, size_);
  if (end <= begin) return 1;
  const uint64_t count = (end - begin + page - 1) / page;
  if (const int64_t cached = overlay_ ? -1 : CachedPages(fd_, begin, end); cached >= 0)
    return std::min(1.0, static_cast<double>(cached) / static_cast<double>(count));
  // For a file of another user that we may not write, the system reports all pages as cached.
  struct stat status = {};
  if (fstat(fd_, &status) != 0 || (status.st_uid != geteuid() && access(path_.c_str(), W_OK) != 0))
    return unknown;
  void* map = mmap(nullptr, end - begin, PROT_READ, MAP_SHARED, fd_, static_cast<off_t>(begin));
  if (map == MAP_FAILED) return unknown;
  std::vector<unsigned char> pages(count);
  bool told = mincore(map, end - begin, pages.data()) == 0;
  munmap(map, end - begin);
  if (!told) return unknown;
  auto there = std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; });
  return static_cast<double>(there) / static_cast<double>(pages.size());
}

char* BlockFile::MapCached(uint64_t begin, uint64_t end) const {
  // Some systems evict cached pages that nothing has mapped for a while. Reading the few missing
  // pages back keeps the rest usable, now and next time.
  constexpr double kMostOfIt = 0.75;
  struct stat status = {};
  if (end <= begin || end > size_ || fstat(fd_, &status) != 0 ||
      static_cast<uint64_t>(status.st_size) < end)
    return nullptr;
  const double cached = Cached(begin, end, 0);
  if (cached < kMostOfIt) return nullptr;
  const off_t at = static_cast<off_t>(begin);
  if (cached < 1) posix_fadvise(fd_, at, static_cast<off_t>(end - begin), POSIX_FADV_WILLNEED);
  // The mapping is writable: a write copies the page, which changes neither the file nor the cache.
  void* mapped =
      mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd_, at);
  if (mapped == MAP_FAILED) return nullptr;
  char* map = static_cast<char*>(mapped);
  RememberPages(map, end - begin, path_.c_str());
  if (cached >= 1) {
    // A page fault maps the cached part of the surrounding 64 KiB. MADV_POPULATE_READ over
    // everything looks at each page separately and takes twice as long.
    constexpr uint64_t kAround = 64 << 10;
    for (uint64_t i = 0; i < end - begin; i += kAround)
      static_cast<void>(*static_cast<volatile char*>(map + i));
    return map;
  }
#ifdef MADV_POPULATE_READ
  // Reads pages that are still on the disk. On failure the caller reads the file and reports the
  // error.
  if (madvise(map, end - begin, MADV_POPULATE_READ) == 0) return map;
#endif
  Unmap(map, end - begin);
  return nullptr;
}

void BlockFile::Unmap(char* map, uint64_t size) {
  ForgetPages(map);
  munmap(map, size);
}

// Reads up to `size` bytes; fewer only at the end of the file.
uint64_t BlockFile::ReadSome(int fd, uint64_t at, char* to, uint64_t size, uint64_t& direct,
                             uint64_t& cached) {
  uint64_t done = 0;
  while (done < size) {
    ssize_t n = pread(fd, to + done, size - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EINVAL && fd == direct_) {
      // The file system accepts O_DIRECT but not the read.
      refused_ = true;
      fd = fd_;
      continue;
    }
    if (n < 0) throw Error(path_, Reason());
    if (n == 0) break;
    done += static_cast<uint64_t>(n);
    (fd == direct_ ? direct : cached) += static_cast<uint64_t>(n);
    // Another direct read would start within a block, which happens only at the end of the file.
    if (fd == direct_ && static_cast<uint64_t>(n) % 512 != 0) break;
  }
  return done;
}

void BlockFile::Read(uint64_t begin, uint64_t end, uint64_t block, char* to, uint64_t& direct,
                     uint64_t& cached) {
  auto absent = [&](uint64_t at) {
    return direct_ >= 0 && !refused_ && Cached(at, std::min(at + kPiece, end), 1) < 1;
  };
  for (uint64_t at = begin, stop = at; at < end; at = stop) {
    const bool straight = absent(at);
    do
      stop = std::min(stop + kPiece, end);
    while (straight && stop < end && absent(stop));
    const uint64_t size = straight ? (stop - at + block - 1) / block * block : stop - at;
    const uint64_t read =
        ReadSome(straight ? direct_ : fd_, at, to + (at - begin), size, direct, cached);
    if (read < stop - at) throw Error(path_, "it became shorter while it was open");
  }
}

}  // namespace pipewright
