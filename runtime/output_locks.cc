#include "runtime/output_locks.h"

#include <chrono>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "base/files/output_path.h"
#include "base/process/messages.h"
#include "runtime/exec/clock.h"

namespace pipewright {

// Seconds to wait. A killed process keeps its locks until the kernel has freed its memory. An owner
// on another host gives a sign of life every 10 s, and an NFS server releases the locks of a lost
// host after 90 s by default.
static constexpr double kDyingHere = 3, kLostElsewhere = 120;

static std::unique_ptr<OwnerLock> LockOf(const std::string& path, bool folder) {
  std::error_code failed;  // two names of one file have one lock
  const std::filesystem::path place = std::filesystem::weakly_canonical(path, failed);
  return std::make_unique<OwnerLock>(OwnerLock::FileFor(failed ? path : place.string(), folder));
}

static void WarnIfUnlocked(const std::string& path, const OwnerLock& lock) {
  if (!lock.unlocked().empty())
    PrintWarning(path + " cannot be locked (" + lock.unlocked() +
                 "): a second run that writes there would not be noticed");
}

std::unique_ptr<OwnerLock> LockFile(const std::string& path) {
  if (path.empty() || IsStream(path)) return nullptr;
  std::unique_ptr<OwnerLock> lock = LockOf(path, false);
  if (!lock->Take())
    throw Error(path, "is written by another run: " + lock->owner().text,
                "name another file, or wait until that run has ended");
  WarnIfUnlocked(path, *lock);
  return lock;
}

std::unique_ptr<OwnerLock> LockFolder(const std::string& path, bool resumes, Transport& transport) {
  std::unique_ptr<OwnerLock> lock = LockOf(path, true);
  const double start = Now();
  bool told = false;
  auto take = [&]() -> Awaited {
    if (lock->Take()) return {};
    const OwnerLock::Owner& owner = lock->owner();
    const double waited = Now() - start;
    // An owner that gave a sign of life while this run waited is alive.
    const bool alive = !resumes || (owner.here ? waited >= kDyingHere : owner.silent + 1 < waited);
    if (alive)
      throw Error(path, "another run writes its checkpoints there: " + owner.text,
                  "name another folder (checkpoint.to), or wait until that run has ended: the "
                  "folder is free by itself then");
    if (!owner.here && owner.silent >= kLostElsewhere) {
      std::fprintf(stderr, "pipewright-run: %s: taken over from a run that is lost: %s\n",
                   path.c_str(), owner.text.c_str());
      lock->TakeOver();
      return {};
    }
    if (!told && !owner.here)
      std::fprintf(stderr,
                   "pipewright-run: %s: another run writes its checkpoints there: %s\n  waiting up "
                   "to %.0f s for a sign of life\n",
                   path.c_str(), owner.text.c_str(), kLostElsewhere);
    told = true;
    return {Awaited::kFolder};
  };
  transport.WaitUntil(take, std::chrono::milliseconds(50));
  WarnIfUnlocked(path, *lock);
  return lock;
}

}  // namespace pipewright
