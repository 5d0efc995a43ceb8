// A file read in large pieces: past the page cache where its pages are not in it and the file
// system can, out of the cache where they are.
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

  // Reads [begin, end) into `to`, which stands for byte `begin` and has room up to the next block;
  // `begin` and `to` are multiples of `block`. Adds to `direct` and `cached` what was read which
  // way. Throws Error. From any thread.
  void Read(uint64_t begin, uint64_t end, uint64_t block, char* to, uint64_t& direct,
            uint64_t& cached);

  // [begin, end) mapped, where three quarters of it or more are known to be in the page cache, else
  // null; `begin` is a multiple of the page size. What is written there stays with this process. To
  // be unmapped by the caller, while this is there: a process that ends because the file was made
  // shorter names it.
  char* MapCached(uint64_t begin, uint64_t end) const;
  static void Unmap(char* map, uint64_t size);

  const std::string& path() const { return path_; }

 private:
  // What part of it is in the page cache. `unknown`: the answer where the system does not tell.
  double Cached(uint64_t begin, uint64_t end, double unknown) const;
  uint64_t ReadSome(int fd, uint64_t at, char* to, uint64_t size, uint64_t& direct,
                    uint64_t& cached);

  std::string path_;
  int fd_ = -1, direct_ = -1;  // direct_: -1 where the file system cannot
  std::atomic<bool> refused_ = false;  // or where it turns out that it cannot
  uint64_t size_ = 0;
  bool overlay_ = false;
};

}  // namespace pipewright
