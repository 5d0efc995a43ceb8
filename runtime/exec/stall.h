// Whether a run still moves, judged from what the ranks say they do.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "runtime/exec/status.h"

namespace pipewright {

struct StallOptions {
  // Seconds without any progress of any rank; 0: never.
  double limit = 60;   // after which a run in which every rank waits is ended, or a stopped rank
  double report = 20;  // between two reports of who waits for what
};

// PIPEWRIGHT_STALL_LIMIT and PIPEWRIGHT_STALL_REPORT, else the defaults.
StallOptions StallOptionsFromEnvironment();

class StallJudge {
 public:
  explicit StallJudge(const StallOptions& options) : options_(options) {}

  struct Verdict {
    std::string report;  // "": nothing to say
    bool fatal = false;
  };
  // To be called every moment, `now` in seconds. A rank that computes for long is reported; only
  // where every rank waits for another is the run beyond hope.
  // `all`: whether these are all ranks; nothing is beyond hope as long as some are not known.
  Verdict Look(double now, const std::vector<RankStatus>& ranks, bool all = true);

 private:
  const StallOptions options_;
  std::vector<std::pair<int64_t, int>> seen_;  // step and entry, by rank
  bool all_waited_ = false;
  double last_ = -1, idle_ = 0, stuck_ = 0, reported_ = 0;
};

}  // namespace pipewright
