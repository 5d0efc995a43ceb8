// Detects stalls: judges from the status of all ranks whether a run still makes progress.
#pragma once
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/exec/status.h"

namespace pipewright {

struct StallOptions {
  // Limits in seconds without progress of any rank; 0 means never.
  double limit = 60;   // ends a run in which every rank waits, or a rank that is stopped
  double report = 20;  // interval of reports about which rank waits for what
};

// Reads PIPEWRIGHT_STALL_LIMIT and PIPEWRIGHT_STALL_REPORT; otherwise uses the defaults.
StallOptions StallOptionsFromEnvironment();

class StallJudge {
 public:
  explicit StallJudge(const StallOptions& options) : options_(options) {}

  struct Verdict {
    std::string report;  // "": nothing to report
    bool fatal = false;
  };
  // Must be called regularly, with `now` in seconds. Reports ranks that compute or write for a long
  // time; declares the run dead only if every rank waits for another. `all` is true if `ranks`
  // contains all ranks; as long as some are unknown, the run is never declared dead.
  Verdict Look(double now, const std::vector<RankStatus>& ranks, bool all = true);

 private:
  const StallOptions options_;
  using Seen = std::tuple<int64_t, int, double>;  // step, entry, and when it began
  std::vector<Seen> seen_;                        // by rank
  bool all_waited_ = false;
  double last_ = -1, idle_ = 0, stuck_ = 0, reported_ = 0;
};

}  // namespace pipewright
