#include "compiler/archive/archive.h"

#include <caffe2/serialize/read_adapter_interface.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/files/mapped_file.h"
#include "base/files/missing_file.h"
#include "formats/torch/zip.h"

namespace pipewright {

FileReader::FileReader(const std::string& path) : path_(path) {
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info = {};
  if (fd_ < 0 || fstat(fd_, &info) != 0) throw Unreadable(path);
  size_ = static_cast<uint64_t>(info.st_size);
  if (S_ISREG(info.st_mode)) return;
  close(fd_);
  throw Error(path, S_ISDIR(info.st_mode) ? "is a folder, where a model (a file) is expected"
                                          : "is not a file");
}

FileReader::~FileReader() { close(fd_); }

void FileReader::Read(uint64_t offset, char* buffer, uint64_t size) const {
  while (size) {
    ssize_t n = pread(fd_, buffer, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw Error(path_, n == 0 ? "ends too early"
                                : std::string("cannot be read: ") + std::strerror(errno));
    buffer += n, offset += static_cast<uint64_t>(n), size -= static_cast<uint64_t>(n);
  }
}

namespace {

class Adapter : public caffe2::serialize::ReadAdapterInterface {
 public:
  explicit Adapter(const std::string& path) : reader_(path) {}
  size_t size() const override { return reader_.size(); }
  size_t read(uint64_t position, void* buffer, size_t n, const char*) const override {
    if (position >= reader_.size()) return 0;
    n = std::min<uint64_t>(n, reader_.size() - position);
    reader_.Read(position, static_cast<char*>(buffer), n);
    return n;
  }

 private:
  FileReader reader_;
};

constexpr const char* kCure =
    "pass a file written by torch.export.save(torch.export.export(model, inputs), \"model.pt2\"), "
    "or by torch.jit.save";

}  // namespace

Archive::Archive(const std::string& path) : path_(path) {
  auto adapter = std::make_shared<Adapter>(path);
  char magic[4] = {};
  if (adapter->read(0, magic, 4, "") < 4 || std::memcmp(magic, "PK\3\4", 4) != 0)
    throw Error(path, "is not an exported model: it does not start like a zip archive", kCure);
  // Checks the directory first: PyTorch's own reader must only see consistent ones.
  MappedFile file(path);
  file.ReadOn(false);
  try {
    ReadZip(file.bytes(), path, /*compressed_allowed=*/true);
  } catch (const Error& e) {
    const std::string what = e.what();
    if (what.find("no end record") != std::string::npos ||
        what.find("beyond the end") != std::string::npos)
      throw Error(path, "is cut off: the directory at the end of the zip archive is missing",
                  "copy or export the file again");
    throw;
  }
  try {
    reader_ = std::make_unique<caffe2::serialize::PyTorchStreamReader>(adapter);
  } catch (const c10::Error& e) {
    throw Error(path, std::string("is not an archive of PyTorch: ") + e.what_without_backtrace(),
                kCure);
  }
}

bool Archive::Has(const std::string& record) const { return reader_->hasRecord(record); }

bool Archive::HasUnder(const std::string& folder) const {
  try {
    for (const std::string& record : reader_->getAllRecords())
      if (record.rfind(folder, 0) == 0) return true;
  } catch (const c10::Error& e) {
    throw Error(path_, e.what_without_backtrace(), "the file is damaged: copy or export it again");
  }
  return false;
}

std::string Archive::Read(const std::string& record) const {
  try {
    auto [data, size] = reader_->getRecord(record);
    return std::string(static_cast<const char*>(data.get()), size);
  } catch (const c10::Error& e) {
    throw Error(path_ + ": " + record, std::string("cannot be read: ") + e.what_without_backtrace(),
                "the file is damaged: copy or export it again");
  }
}

uint64_t Archive::Size(const std::string& record) const {
  try {
    return reader_->getRecordSize(record);
  } catch (const c10::Error& e) {
    throw Error(path_ + ": " + record, e.what_without_backtrace());
  }
}

uint64_t Archive::Offset(const std::string& record) const {
  try {
    return reader_->getRecordOffset(record);
  } catch (const c10::Error& e) {
    throw Error(path_ + ": " + record, e.what_without_backtrace());
  }
}

}  // namespace pipewright
