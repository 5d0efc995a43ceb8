// How busy every rank is, brought to one of them without making anyone wait.
#pragma once
#include <deque>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

struct RankReport {
  double busy = 0;    // seconds of the step in which the rank computed
  double total = 0;   // seconds of the step
  double memory = 0;  // bytes that the process holds
};

// Each rank sends one small message a step to `root`, which sees those of a step together, a step
// or so late. Uses the tag kReportTag.
class RankReports {
 public:
  RankReports(Transport& transport, int root);

  // Once a step, on every rank.
  void Add(const RankReport& mine);
  // On `root`: by rank, of the newest step that all have reported; empty before the first.
  const std::vector<RankReport>& newest();
  // Waits for what is under way, on every rank.
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

// Of this process: bytes in memory.
double ResidentBytes();

}  // namespace pipewright
