// Locks what a run writes for as long as it runs: a second run with the same folder or file would
// silently destroy what the first one writes.
#pragma once
#include <memory>
#include <string>

#include "base/files/owner_lock.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// Locks a file to write to; returns null for a pipe or a device. Throws Error naming the owner if
// another run has it.
std::unique_ptr<OwnerLock> LockFile(const std::string& path);
// Locks a folder, which must exist. A run that resumes waits for an owner that may be dead: one
// that is just being killed, or whose host is lost.
std::unique_ptr<OwnerLock> LockFolder(const std::string& path, bool resumes, Transport& transport);

}  // namespace pipewright
