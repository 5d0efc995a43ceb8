#include "runtime/checkpoint/checkpoint_folder.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <utility>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/read_file.h"
#include "base/text.h"
#include "formats/weights/run_checkpoint.h"
#include "runtime/exec/clock.h"
#include "runtime/exec/phase.h"
#include "runtime/output_locks.h"

namespace pipewright {

namespace fs = std::filesystem;

static std::string RunName() {
  uint64_t time =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  return HexHash(ThisHost() + "." + std::to_string(getpid()) + "." + std::to_string(time));
}

bool CheckpointFolder::shared() const {
  return std::count(first.begin(), first.end(), 0) == static_cast<std::ptrdiff_t>(first.size());
}

std::string CheckpointFolder::HostOf(int rank, const std::vector<std::string>& hosts) const {
  const int owner = first[rank];
  if (hosts.empty()) return "of rank " + std::to_string(owner);
  for (size_t other = 0; other < hosts.size(); ++other)  // containers may share a name
    if (hosts[other] == hosts[owner] && first[other] != owner)
      return hosts[owner] + " (rank " + std::to_string(owner) + ")";
  return hosts[owner];
}

std::string CheckpointFolder::Describe(const std::vector<std::string>& hosts) const {
  if (shared()) {
    const bool one = std::count(hosts.begin(), hosts.end(), hosts.empty() ? "" : hosts[0]) ==
                     static_cast<std::ptrdiff_t>(hosts.size());
    return one ? "" : "checkpoints in " + path + ", which all hosts share";
  }
  std::vector<std::string> owners;
  for (size_t rank = 0; rank < first.size(); ++rank)
    owners.push_back(HostOf(static_cast<int>(rank), hosts));
  return "checkpoints in " + path + ", which the hosts do not share: each keeps the shards of its "
         "own ranks (" + HostsText(owners) + ")";
}

// Each rank leaves a file there, and looks for those of the others. Returns the lowest rank whose
// file this one sees.
static int LowestSeen(const std::function<fs::path(int)>& file, int size) {
  constexpr double kLate = 1;  // seconds; some file systems show other hosts' files late
  const double start = Now();
  int lowest = size, seen = 0;
  do {
    lowest = size, seen = 0;
    for (int rank = size - 1; rank >= 0; --rank) {
      std::error_code failed;
      if (!fs::exists(file(rank), failed)) continue;
      lowest = rank, ++seen;
    }
    if (seen < size) usleep(20000);
  } while (seen < size && Now() - start < kLate);
  return lowest;
}

CheckpointFolder OpenCheckpointFolder(const std::string& path, const std::string& key,
                                      bool resumes, Transport& transport) {
  CheckpointFolder folder;
  folder.path = path;
  folder.run = transport.AllGather(RunName())[0];
  const int self = transport.rank(), size = transport.size();
  auto phase = [&](const std::function<void()>& work) {
    Phase(transport, "preparing checkpoints", [&] {
      try {
        work();
      } catch (const Aborted&) {
        throw;
      } catch (const std::exception& e) {
        throw Error(key, e.what());
      }
    });
  };
  auto file = [&](int rank) -> fs::path {
    return TemporaryCheckpoint(path, folder.run, 0) + "-rank" + std::to_string(rank);
  };
  phase([&] {
    CreateFolders(path);
    CheckWritable(path + "/latest");
    WriteFile(file(self).string(), "");
  });
  const int lowest = LowestSeen(file, size);
  for (const std::string& other : transport.AllGather(std::to_string(lowest)))
    folder.first.push_back(std::stoi(other));
  phase([&] {
    std::error_code left;  // a later run removes it if this fails
    fs::remove(file(self), left);
    if (folder.first[self] == self) folder.lock = LockFolder(path, resumes, transport);
  });
  return folder;
}

void CheckHoldsNoCheckpoint(const std::string& folder, const std::string& job) {
  const std::vector<std::string> there = ListCheckpoints(folder);
  const std::vector<std::string> incomplete = IncompleteCheckpoints(folder, true);
  const std::string anew =
      "to start over, name another folder, \"checkpoint\": {\"to\": \"FOLDER\"} in " + job +
      ", or remove what is in this one";
  if (!there.empty())
    throw Error(folder, "holds checkpoints already, up to " + there[0],
                "resume from it with --resume; " + anew);
  if (!incomplete.empty())
    throw Error(folder, "holds what is left of checkpoints\n  " + Join(incomplete, "\n  "), anew);
}

}  // namespace pipewright
