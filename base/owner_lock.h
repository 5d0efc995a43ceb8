// OwnerLock says which process owns a folder or a file that it writes for long.
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace pipewright {

// A file that its owner keeps locked (flock) and that says who the owner is. The kernel frees the
// lock with the process, however that ends. The owner also counts in the file, every `beat`
// seconds: where its host is lost and the file server keeps the lock, the count stands still, and
// another host may take the file's place. An owner that was only cut off notices that with its next
// beat. On a file system without locks everybody gets the lock.
class OwnerLock {
 public:
  // Names the lock of what is written at `path`: FOLDER/.lock, or .FILE.lock beside a file.
  static std::string FileFor(const std::string& path, bool folder);

  explicit OwnerLock(const std::string& file, double beat = 10) : file_(file), beat_(beat) {}
  // Removes the file.
  ~OwnerLock();
  OwnerLock(const OwnerLock&) = delete;

  // Returns false while another process has the lock: owner() is that process then.
  bool Take();
  // Takes it from owner(), which must not have counted for long: see Owner::silent.
  void TakeOver();
  // Returns true if another process has taken it over, so that this one must not write any more.
  bool lost() const { return lost_; }
  // The same, looked up now.
  bool CheckLost();

  struct Owner {
    bool here = false;  // on this machine, where the kernel knows whether it lives
    std::string text;   // "pid 12 on host-a, since 2030-01-31 12:00:00 UTC: COMMAND LINE"
    double silent = 0;  // seconds for which this process has seen it count no further
  };
  const Owner& owner() const { return owner_; }
  // Says why nothing is locked although Take returned true; "" where it is.
  const std::string& unlocked() const { return unlocked_; }

 private:
  void Hold(int fd);
  void Write(int64_t count) const;

  const std::string file_;
  const double beat_;
  int fd_ = -1;
  Owner owner_;
  std::string unlocked_, seen_;  // what the owner's file held
  double seen_at_ = 0;           // since when
  std::atomic<bool> lost_{false};
  bool ends_ = false;  // guarded by mutex_
  std::mutex mutex_;
  std::condition_variable wake_;
  std::thread beats_;
};

// Returns the name of this host.
std::string ThisHost();

}  // namespace pipewright
