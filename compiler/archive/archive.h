// Reads files written by PyTorch: a zip of records, each of which is read only on request.
#pragma once
#include <caffe2/serialize/inline_container.h>

#include <memory>
#include <string>

namespace pipewright {

class Archive {
 public:
  // Throws Error if the file is missing, not a zip, or truncated.
  explicit Archive(const std::string& path);

  const std::string& path() const { return path_; }
  bool Has(const std::string& record) const;
  // Returns true if some record's name starts with `folder`.
  bool HasUnder(const std::string& folder) const;
  // Returns the version of the format, as the writer recorded it.
  uint64_t Version() const { return reader_->version(); }
  std::string Read(const std::string& record) const;
  // Returns the position of the record's payload in the file. Throws Error if it is compressed or
  // out of range.
  uint64_t Offset(const std::string& record) const;
  uint64_t Size(const std::string& record) const;

 private:
  std::string path_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

// Reads pieces of a file without mapping it, so that resident memory does not grow.
class FileReader {
 public:
  explicit FileReader(const std::string& path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  uint64_t size() const { return size_; }
  // Throws Error if the file is too short.
  void Read(uint64_t offset, char* buffer, uint64_t size) const;

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace pipewright
