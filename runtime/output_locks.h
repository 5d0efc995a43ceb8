// Locks of what a run writes for as long as it lives: a second run with the same folder or file
// would destroy what the first one writes, without a word.
#pragma once
#include <memory>
#include <string>

#include "base/owner_lock.h"
#include "runtime/exec/transport.h"

namespace pipewright {

// Locks a file that is written (not a pipe or a device: null then). Throws Error naming the owner.
std::unique_ptr<OwnerLock> LockFile(const std::string& path);
// Locks a folder, which must be there. A run that resumes waits for an owner that may be dead: one
// that is just being killed, or whose host is lost.
std::unique_ptr<OwnerLock> LockFolder(const std::string& path, bool resumes, Transport& transport);

}  // namespace pipewright
