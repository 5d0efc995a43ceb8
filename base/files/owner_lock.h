// OwnerLock marks a folder or file as owned by the process that is writing it.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace pipewright {

// A lock file (flock) that names its owner. The kernel releases the lock when the process ends,
// however it ends. The owner also increments a counter in the file every `beat` seconds. If the
// owner's host is lost and the file server keeps the lock, the counter stops, and another host may
// replace the file. An owner that was only disconnected notices this at its next beat. On a file
// system without locks, everyone gets the lock.
class OwnerLock {
 public:
  // Returns the lock file for output at `path`: FOLDER/.lock, or .FILE.lock beside a file.
  static std::string FileFor(const std::string& path, bool folder);

  explicit OwnerLock(const std::string& file, double beat = 10) : file_(file), beat_(beat) {}
  // Removes the lock file.
  ~OwnerLock();
  OwnerLock(const OwnerLock&) = delete;

  // Returns false if another process has the lock; owner() then describes that process.
  bool Take();
  // Takes the lock from owner(), whose counter must have stopped: see Owner::silent. Throws Error
  // if the file cannot be replaced.
  void TakeOver();
  // Returns true if another process has taken the lock over: this one must stop writing.
  bool lost() const { return lost_; }
  // Updates lost() from the file system and returns it.
  bool CheckLost();

  struct Owner {
    bool here = false;  // on this machine, where the kernel frees the lock of a dead process
    std::string text;   // "pid 12 on host-a, since 2030-01-31 12:00:00 UTC: COMMAND LINE"
    double silent = 0;  // seconds since this process last saw the counter change
  };
  const Owner& owner() const { return owner_; }
  // Returns why nothing is locked although Take returned true; "" if the lock is held.
  const std::string& unlocked() const { return unlocked_; }

 private:
  void Hold(int fd);
  void Write(int64_t count) const;

  const std::string file_;
  const double beat_;
  int fd_ = -1;
  Owner owner_;
  std::string unlocked_, seen_;  // seen_: the last text of another owner's file
  double seen_at_ = 0;           // time of its last change, in seconds
  std::atomic<bool> lost_{false};
  bool ends_ = false;  // guarded by mutex_
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread beats_;
};

// Returns the name of this host.
std::string ThisHost();

}  // namespace pipewright
