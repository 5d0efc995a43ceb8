// Collects how busy every rank is on one of them, without making any rank wait.
#pragma once
#include <deque>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

struct RankReport {
  double busy = 0;    // seconds of the step spent computing
  double total = 0;   // duration of the step in seconds
  double memory = 0;  // resident bytes of the process
};

// Each rank sends one small message per step to `root`, which sees the complete step about one step
// later. Uses the tag kReportTag.
class RankReports {
 public:
  RankReports(Transport& transport, int root);

  // Must be called once per step on every rank.
  void Add(const RankReport& mine);
  // On `root`: returns the newest step that all have reported, by rank; empty before the first.
  const std::vector<RankReport>& newest();
  // Waits for messages in flight, on every rank.
  void Finish();

 private:
  struct Step {
    std::vector<RankReport> ranks;
    std::vector<Token> tokens;
  };
  void Take(bool wait);

  Transport& transport_;
  const int root_;
  std::deque<std::pair<std::shared_ptr<RankReport>, Token>> sent_;
  std::deque<std::shared_ptr<Step>> arriving_;
  std::vector<RankReport> newest_;
};

}  // namespace pipewright
