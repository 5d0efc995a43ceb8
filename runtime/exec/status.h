// What each rank is doing right now, in a small mapped file, so that whoever remains can say what a
// dead or stopped rank was at. Costs a store of one cache line for each action.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

enum class RankState : int32_t {
  kRunning,
  kFinished,    // ended as it should, or shows itself why not
  kFailed,      // has shown an error and ends all ranks
  kTerminated,  // ends because it was told to (SIGTERM)
  kExited,      // somebody called exit()
};

// What a rank waits for.
struct Awaited {
  enum Kind : int32_t {
    kNothing,
    kValues,
    kGradients,
    kSharedWeight,
    kSizes,
    kEveryRank,
    // beside a plan
    kStop,
    kReport,
    kLosses,
    kBuffers,
    kTensor
  };
  Kind kind = kNothing;
  int32_t rank = -1;           // whose message (or whose receive of ours); -1: every rank's
  int32_t from = -1, to = -1;  // stages
  int32_t microbatch = -1;
  int32_t sends = 0;  // it waits for its own message to leave
  bool operator==(const Awaited&) const = default;
};

struct RankStatus {
  int rank = -1;
  std::string action;  // "2F5"; "" between steps
  int64_t step = 0;    // from 0
  int entry = -1;      // position in the rank's list
  int stage = -1, microbatch = -1;
  Awaited awaits;
  double since = 0;  // seconds on the host's monotonic clock: when the action began
  RankState state = RankState::kRunning;
  int signal = 0;      // that ends the rank; 0: none
  uint32_t beats = 0;  // grows as long as the process runs
  bool stop = false;   // asked to end after the step
  int pid = 0;
  std::string host;
};

// The file of one rank in `folder`.
std::string StatusPath(const std::string& folder, int rank);

// Throws Error when there is no such file or it is not one of these.
RankStatus ReadStatus(const std::string& path);
// The same from a file's bytes. False when they are something else.
bool DecodeStatus(std::string_view bytes, RankStatus& status);
// Those of `folder` that can be read, by rank.
std::vector<RankStatus> ReadStatusFolder(const std::string& folder);

// "the values of stage 1 for stage 2, microbatch 5, of rank 1"; "" for nothing.
std::string Describe(const Awaited& awaited);
// "step 3, stage 2, microbatch 5, action 2F5", with what it waits for; "before the first action".
std::string DescribePlace(const RankStatus& status);
// "rank 2 on host-a (pid 12)"
std::string DescribeRank(const RankStatus& status);

class StatusFile {
 public:
  StatusFile() = default;  // keeps nothing
  // Creates the file (and its folder); "": in memory, for this process and its children. Throws
  // Error naming the path.
  explicit StatusFile(const std::string& path, int rank = -1);
  StatusFile(StatusFile&& other) noexcept;
  StatusFile& operator=(StatusFile&& other) noexcept;
  ~StatusFile();

  // By the rank's own thread.
  void Begin(int64_t step, int entry, int stage, int microbatch, std::string_view action,
             double since);
  void EndStep(int64_t step, double since) { Begin(step, -1, -1, -1, "", since); }
  void WaitFor(const Awaited& awaited);

  // By any thread, or by a signal handler.
  void SetRank(int rank);
  void SetState(RankState state);
  void SetSignal(int signal);
  void RequestStop();
  bool stop_requested() const;
  void Beat();

  explicit operator bool() const { return page_; }
  int file() const { return file_; }
  RankStatus Read() const;  // by any thread, or by a child of the process

 private:
  friend bool DecodeStatus(std::string_view bytes, RankStatus& status);
  struct Page;
  static bool Decode(const void* bytes, RankStatus& status);
  Page* page_ = nullptr;
  int file_ = -1;
};

}  // namespace pipewright
