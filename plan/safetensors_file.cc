#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "plan/error.h"
#include "plan/json.h"
#include "plan/safetensors.h"
#include "plan/text.h"

namespace pipewright {

static std::string Reason() { return std::string("cannot be read: ") + std::strerror(errno); }

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw Error(path, Reason());
  struct stat status = {};
  try {
    if (fstat(fd, &status) != 0) throw Error(path, Reason());
    if (!S_ISREG(status.st_mode)) throw Error(path, "not a file");
    size_ = static_cast<size_t>(status.st_size);
    if (size_) {
      // Writable pages are not reserved: a file may be larger than memory.
      void* map = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
      if (map == MAP_FAILED) throw Error(path, Reason());
      map_ = static_cast<char*>(map);
    }
    header_ = ParseSafetensorsHeader({map_, size_}, path);
  } catch (...) {
    if (map_) munmap(map_, size_);
    close(fd);
    throw;
  }
  fd_ = fd;
}

SafetensorsFile::~SafetensorsFile() {
  munmap(map_, size_);
  close(fd_);
}

const TensorInfo& SafetensorsFile::At(std::string_view name) const {
  if (const TensorInfo* info = Find(name)) return *info;
  std::vector<std::string> names;
  for (const TensorInfo& info : header_.tensors) names.push_back(info.name);
  throw Error(path_, "no tensor " + Quote(name) + Suggest(name, names));
}

char* SafetensorsFile::MutableBytes(const TensorInfo& info) const {
  return map_ + header_.data_begin + info.begin;
}

std::string_view SafetensorsFile::Bytes(const TensorInfo& info) const {
  return {MutableBytes(info), info.end - info.begin};
}

void SafetensorsFile::Read(const TensorInfo& info, uint64_t offset, char* buffer,
                           uint64_t size) const {
  if (offset > info.end - info.begin || size > info.end - info.begin - offset)
    throw Error(path_, "tensor " + Quote(info.name) + ": a read beyond its end");
  uint64_t at = header_.data_begin + info.begin + offset;
  while (size) {
    ssize_t n = pread(fd_, buffer, size, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw Error(path_, Reason());
    if (n == 0) throw Error(path_, "cannot be read: it became shorter while it was open");
    buffer += n, at += static_cast<uint64_t>(n), size -= static_cast<uint64_t>(n);
  }
}

TensorToWrite CopyOf(const SafetensorsFile& from, const TensorInfo& info) {
  TensorToWrite tensor{info.name, info.dtype, info.shape};
  tensor.produce = [&from, &info](const ByteSink& sink) {
    constexpr uint64_t kPiece = 1 << 20;
    uint64_t size = info.end - info.begin;
    std::string piece(std::min(kPiece, size), '\0');
    for (uint64_t at = 0; at < size; at += kPiece) {
      piece.resize(std::min(kPiece, size - at));
      from.Read(info, at, piece.data(), piece.size());
      sink(piece);
    }
  };
  return tensor;
}

}  // namespace pipewright
