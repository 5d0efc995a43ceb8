// The folder that a run writes its checkpoints into, as its ranks see it.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/files/owner_lock.h"
#include "runtime/exec/transport.h"

namespace pipewright {

struct CheckpointFolder {
  std::string path;
  std::string run;  // distinguishes the temporary files of runs
  // By rank, the lowest rank that sees the same folder: all 0 where the hosts share it.
  std::vector<int> first;
  std::unique_ptr<OwnerLock> lock;  // on those lowest ranks

  bool shared() const;
  // Names the host whose folder a rank sees.
  std::string HostOf(int rank, const std::vector<std::string>& hosts) const;
  // Says whether the hosts share it ("checkpoints in F, which all hosts share"); "" on one host.
  std::string Describe(const std::vector<std::string>& hosts) const;
};

// Creates the folder on every rank, finds out which ranks see the same one, and locks it for this
// run. `key` stands for the folder in errors. Collective; throws the same Error on every rank.
CheckpointFolder OpenCheckpointFolder(const std::string& path, const std::string& key,
                                      bool resumes, Transport& transport);

// Throws Error if the folder holds checkpoints or remains of incomplete ones. `job`: the file that
// names the folder.
void CheckHoldsNoCheckpoint(const std::string& folder, const std::string& job);

}  // namespace pipewright
