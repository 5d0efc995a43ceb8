// BlockFile reads a file in large blocks. Pages that are in the page cache are copied from there;
// the others are read directly from the disk, past the cache, if the file system allows it.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

namespace pipewright {

class BlockFile {
 public:
  explicit BlockFile(const std::string& path);  // throws Error
  ~BlockFile();
  BlockFile(const BlockFile&) = delete;
  BlockFile& operator=(const BlockFile&) = delete;

  // Reads [begin, end) into `to`, which corresponds to byte `begin` and must have room up to the
  // next block boundary. `begin` and `to` must be multiples of `block`. Adds the number of bytes
  // read each way to `direct` and `cached`. Throws Error. Thread-safe.
  void Read(uint64_t begin, uint64_t end, uint64_t block, char* to, uint64_t& direct,
            uint64_t& cached);

  // Maps [begin, end) if at least three quarters of it are known to be in the page cache; returns
  // null otherwise. `begin` must be a multiple of the page size. Writes to the mapping stay private
  // to this process. The caller must unmap it before this object is destroyed. If the file is
  // truncated meanwhile, the message of the process that crashes names the file.
  char* MapCached(uint64_t begin, uint64_t end) const;
  static void Unmap(char* map, uint64_t size);

  const std::string& path() const { return path_; }

 private:
  // Returns the cached share (0 to 1) of the file's pages, or `unknown` if the system cannot tell.
  double Cached(uint64_t begin, uint64_t end, double unknown) const;
  uint64_t ReadSome(int fd, uint64_t at, char* to, uint64_t size, uint64_t& direct,
                    uint64_t& cached);

  std::string path_;
  int fd_ = -1, direct_ = -1;          // direct_ is -1 if the file system has no direct reads
  std::atomic<bool> refused_ = false;  // true once a direct read was rejected
  uint64_t size_ = 0;
  bool overlay_ = false;
};

}  // namespace pipewright
