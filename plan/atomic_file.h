// A file that appears under its name only when it is complete.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

// Writes go to a temporary file in the same folder; Commit syncs it and renames it. Without Commit
// the temporary file is removed and what was at `path` before stays, also for those who mapped it.
// What is no file (/dev/null, a pipe) is written to as it is, never replaced, and so is what this
// process has open (/dev/stdout). Files are written in blocks of 2 MiB from a multiple of that on:
// a system's page cache can keep those as huge pages, and to map the file takes a sixth of the
// time.
// All members throw Error naming `path`.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void Write(std::string_view bytes);
  void Commit();

 private:
  [[noreturn]] void Fail() const;
  void WriteNow(std::string_view bytes);

  std::string path_, temporary_;
  std::string block_;  // what was written of a block that is not complete
  int fd_ = -1;
};

// What was renamed or created in `folder` outlives a loss of power. Throws Error.
void SyncFolder(const std::string& folder);

// Renames the folder `from` to `to`. Where `to` is there already, the two change names, in one step
// where the file system can, and true is returned. Throws Error.
bool RenameOrExchange(const std::string& from, const std::string& to);

// With those above it, where they are not there. Throws Error.
void CreateFolders(const std::string& path);

// Throws Error when `path` could not be written: its folder is missing or refuses; or when it is
// one of the files that are `read`, which would be lost. `in_place`: a file that is there is not
// replaced, and its folder may refuse.
void CheckWritable(const std::string& path, const std::vector<std::string>& read = {},
                   bool in_place = false);

}  // namespace pipewright
