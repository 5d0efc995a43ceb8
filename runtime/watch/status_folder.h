// Folders in shared memory that hold the status files of a run on one host, and their removal after
// all of its processes were killed.
#pragma once
#include <set>
#include <string>

namespace pipewright {

// Returns the folder that holds such folders. It is in memory, because a status file must not wait
// for a disk.
std::string StatusBase();

// Locks a status folder for as long as a process uses it. The kernel releases the lock when the
// process ends, however it ends.
class StatusFolderUse {
 public:
  StatusFolderUse() = default;
  // Creates the folder if need be. Throws Error.
  explicit StatusFolderUse(const std::string& folder);
  StatusFolderUse(StatusFolderUse&& other) noexcept;
  StatusFolderUse& operator=(StatusFolderUse&& other) noexcept;
  ~StatusFolderUse();

 private:
  int fd_ = -1;
};

// Removes the status folders in StatusBase() that no process uses any more. Only the lock proves
// that: containers share StatusBase(), so names and process ids may be those of other containers.
void RemoveUnusedStatusFolders();

// Removes the files rank-N.status in `folder` except those of these names: they are of an earlier
// run.
void RemoveOtherStatusFiles(const std::string& folder, const std::set<std::string>& kept);

}  // namespace pipewright
