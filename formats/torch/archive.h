// Opens files written by PyTorch (.pt2, .pt): zips of records, each of which is read only on
// request.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/files/mapped_file.h"
#include "formats/torch/zip.h"

namespace pipewright {

// Records are named without the folder that holds all of them: "data.pkl", not "model/data.pkl".
class Archive {
 public:
  // Throws Error if the file is missing, not a zip, truncated, or has no records in a folder, with
  // a version among them.
  explicit Archive(const std::string& path);
  // The same for a file in memory, which must outlive the archive; `path` is for messages.
  Archive(std::string_view file, const std::string& path);

  const std::string& path() const { return path_; }
  bool Has(const std::string& record) const { return records_.count(record) > 0; }
  // Returns true if some record's name starts with `folder`.
  bool HasUnder(const std::string& folder) const;
  // Returns the version of the format, as the writer recorded it.
  uint64_t Version() const;
  // Returns the contents. Throws Error if there is no such record, it is damaged, or it is
  // compressed and larger than 256 MiB.
  std::string Read(const std::string& record) const;
  // Returns the position of the record's payload in the file. Throws Error if it is compressed.
  uint64_t Offset(const std::string& record) const;
  // Returns the bytes of its contents.
  uint64_t Size(const std::string& record) const;

 private:
  explicit Archive(std::unique_ptr<MappedFile> map);
  const ZipEntry& Find(const std::string& record) const;

  std::string path_;
  std::unique_ptr<MappedFile> map_;  // nullptr if the caller has the file in memory
  std::string_view file_;
  std::map<std::string, ZipEntry> records_;
};

}  // namespace pipewright
