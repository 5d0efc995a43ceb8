// Folders in shared memory that hold the status files of a run on one host, and what becomes of
// them when all of its processes are killed.
#pragma once
#include <string>

namespace pipewright {

// Returns the folder in which such folders lie: one in memory, since a status file must not wait
// for a disk.
std::string StatusBase();

// A process that uses a status folder keeps this for as long as it does. The kernel gives the lock
// up with the process, however that ends.
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

// Removes the status folders in StatusBase() that no process uses any more. A name or a process id
// proves nothing there, because containers share it: only the lock does.
void RemoveUnusedStatusFolders();

}  // namespace pipewright
