// Maps a whole file into memory, where it is read when touched.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace pipewright {

// Pages are mapped privately and may be written to, which changes neither the file nor other
// processes' view. A file larger than memory can be mapped. Members throw Error naming the path.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::string_view bytes() const { return {map_, size_}; }
  char* data() const { return map_; }

  // Turns the system's read-ahead of megabytes on or off (default: on). Turn it off to parse a
  // header, because the payloads behind it may not be needed.
  void ReadOn(bool on) const;

  // Reads [at, at + size) into `buffer` without touching the mapping, so that resident memory does
  // not grow.
  void Read(uint64_t at, char* buffer, uint64_t size) const;

 private:
  std::string path_;
  int fd_ = -1;
  char* map_ = nullptr;
  size_t size_ = 0;
};

}  // namespace pipewright
