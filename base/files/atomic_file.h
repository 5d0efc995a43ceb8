// AtomicFile writes a file that appears under its name only when it is complete.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

// Writes go to a temporary file in the same folder; Commit syncs and renames it. Without Commit the
// temporary file is removed, and the previous file at `path` stays, also for processes that mapped
// it. Non-regular files (/dev/null, pipes) and files that this process has open (/dev/stdout) are
// written in place, not replaced. Files are written in aligned blocks of 2 MiB, which the page
// cache can keep as huge pages; mapping such a file takes a sixth of the time. All members throw
// Error naming `path`.
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
  std::string block_;  // the bytes of an incomplete block
  int fd_ = -1;
};

// Makes renames and new files in `folder` survive a power failure. Throws Error.
void SyncFolder(const std::string& folder);

// Renames the folder `from` to `to`. If `to` exists, the two exchange names, atomically if the file
// system can, and the function returns true. Throws Error.
bool RenameOrExchange(const std::string& from, const std::string& to);

// Creates the folder and its missing parents. Throws Error.
void CreateFolders(const std::string& path);

// Throws Error if `path` cannot be written, because its folder is missing or not writable, or if it
// is one of the files in `read`, which would be lost. `in_place`: an existing file is not replaced,
// so its folder need not be writable.
void CheckWritable(const std::string& path, const std::vector<std::string>& read = {},
                   bool in_place = false);

}  // namespace pipewright
