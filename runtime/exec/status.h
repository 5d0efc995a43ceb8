// What each rank is doing right now, in a small mapped file, so that whoever remains can say what a
// dead or stopped rank was at. Costs a store of one cache line for each action.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace pipewright {

struct RankStatus {
  std::string action;  // "2F5"; "" between steps
  int64_t step = 0;
  int entry = -1;      // position in the rank's list
  int waits_for = -1;  // the rank whose message it waits for; -1: none
  double since = 0;    // seconds on the host's monotonic clock: when the action began
  int pid = 0;
  std::string host;
};

// The file of one rank in `folder`.
std::string StatusPath(const std::string& folder, int rank);

// Throws Error when there is no such file or it is not one of these.
RankStatus ReadStatus(const std::string& path);

// "at 2F5 (entry 17) of step 3, waiting for rank 1, on host-a (pid 12)"
std::string Describe(const RankStatus& status);

class StatusFile {
 public:
  StatusFile() = default;  // keeps nothing
  // Creates the folder and the file. Throws Error naming the path.
  StatusFile(const std::string& folder, int rank);
  StatusFile(StatusFile&& other) noexcept;
  StatusFile& operator=(StatusFile&& other) noexcept;
  ~StatusFile();

  void Begin(int64_t step, int entry, std::string_view action, double since);
  void WaitFor(int rank);  // -1: no longer
  void EndStep(int64_t step, double since) { Begin(step, -1, "", since); }

 private:
  friend RankStatus ReadStatus(const std::string& path);
  struct Page;
  Page* page_ = nullptr;
};

}  // namespace pipewright
