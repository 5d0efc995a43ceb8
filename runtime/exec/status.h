// The current action of each rank, kept in a small mapped file, so that survivors can say what a
// dead or stopped rank was doing. Each action costs one store of a cache line.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pipewright {

enum class RankState : int32_t {
  kRunning,
  kFinished,    // ended normally, or reports its error itself
  kFailed,      // has shown an error and aborts all ranks
  kTerminated,  // ends on request (SIGTERM)
  kExited,      // some code called exit()
};

// The transfer that a rank waits for.
struct Awaited {
  enum Kind : int32_t {
    kNothing,
    kValues,
    kGradients,
    kSharedWeight,
    kSizes,
    kEveryRank,
    // outside a plan
    kStop,
    kReport,
    kLosses,
    kBuffers,
    kTensor,
    kRequest,
    kShards,
    kDevice,  // its own device, whose transfers depend on others; `microbatch` counts its progress
    // local: these do not depend on another rank
    kDisk,
    kFolder,
    kWeights
  };
  Kind kind = kNothing;
  int32_t rank = -1;           // the rank that sends it (or receives ours); -1: every rank
  int32_t from = -1, to = -1;  // stages
  int32_t microbatch = -1;
  int32_t sends = 0;  // 1 if it waits for its own message to leave
  bool operator==(const Awaited&) const = default;

  bool another() const { return kind != kNothing && kind < kDisk; }
};

struct RankStatus {
  int rank = -1;
  std::string action;  // "2F5"; "" between steps
  int64_t step = 0;    // from 0
  int entry = -1;      // position in the rank's list
  int stage = -1, microbatch = -1;
  Awaited awaits;
  double since = 0;  // start of the action, in seconds of the host's monotonic clock
  RankState state = RankState::kRunning;
  int signal = 0;      // signal that kills the rank; 0: none
  uint32_t beats = 0;  // increases while the process runs
  bool stop = false;   // the run was asked to end after this step
  int writing = 0;     // threads that write its share of a checkpoint
  int pid = 0;
  std::string host;
};

// Returns the path of a rank's file in `folder`.
std::string StatusPath(const std::string& folder, int rank);

// Throws Error if the file is missing or not a status file.
RankStatus ReadStatus(const std::string& path);
// Decodes the bytes of a status file. Returns false if they are something else.
bool DecodeStatus(std::string_view bytes, RankStatus& status);
// Returns all readable status files of `folder`, by rank.
std::vector<RankStatus> ReadStatusFolder(const std::string& folder);

// Returns text such as "the values of stage 1 for stage 2, microbatch 5, of rank 1"; "" for
// kNothing.
std::string Describe(const Awaited& awaited);
// Returns text such as "step 3, stage 2, microbatch 5, action 2F5", with what the rank waits for,
// or "before the first action".
std::string DescribePlace(const RankStatus& status);
// Returns text such as "rank 2 on host-a (pid 12)".
std::string DescribeRank(const RankStatus& status);

class StatusFile {
 public:
  StatusFile() = default;  // discards everything
  // Creates the file (and its folder). With "" the status is kept in memory, for this process and
  // its children. Throws Error with the path.
  explicit StatusFile(const std::string& path, int rank = -1);
  StatusFile(StatusFile&& other) noexcept;
  StatusFile& operator=(StatusFile&& other) noexcept;
  ~StatusFile();

  // Called by the rank's own thread only.
  void Begin(int64_t step, int entry, int stage, int microbatch, std::string_view action,
             double since);
  void EndStep(int64_t step, double since) { Begin(step, -1, -1, -1, "", since); }
  void WaitFor(const Awaited& awaited);

  // Called by any thread, or by a signal handler.
  void SetRank(int rank);
  void SetState(RankState state);
  void SetSignal(int signal);
  void RequestStop();
  bool stop_requested() const;
  void Beat();
  void BeginWriting();
  void EndWriting();

  explicit operator bool() const { return page_; }
  int file() const { return file_; }
  RankStatus Read() const;  // called by any thread or child process

 private:
  friend bool DecodeStatus(std::string_view bytes, RankStatus& status);
  struct Page;
  static bool Decode(const void* bytes, RankStatus& status);
  Page* page_ = nullptr;
  int file_ = -1;
};

}  // namespace pipewright
