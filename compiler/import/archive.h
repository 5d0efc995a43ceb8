// A file that PyTorch wrote: a zip of records, none of them read before it is asked for.
#pragma once
#include <caffe2/serialize/inline_container.h>

#include <memory>
#include <string>

namespace pipewright {

class Archive {
 public:
  // Throws Error: no such file, not a zip, a zip that is cut off.
  explicit Archive(const std::string& path);

  const std::string& path() const { return path_; }
  bool Has(const std::string& record) const;
  // Whether a record's name starts with `folder`.
  bool HasUnder(const std::string& folder) const;
  // Of the format, as the writer recorded it.
  uint64_t Version() const { return reader_->version(); }
  std::string Read(const std::string& record) const;
  // Where the record's payload lies in the file. Throws Error when it is compressed or out of
  // range.
  uint64_t Offset(const std::string& record) const;
  uint64_t Size(const std::string& record) const;

 private:
  std::string path_;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> reader_;
};

// Reads pieces of a file without mapping it, so that memory does not grow with what is read.
class FileReader {
 public:
  explicit FileReader(const std::string& path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;
  uint64_t size() const { return size_; }
  // Throws Error when the file ends before.
  void Read(uint64_t offset, char* buffer, uint64_t size) const;

 private:
  std::string path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

}  // namespace pipewright
