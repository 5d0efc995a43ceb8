#include "runtime/watch/stall.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace pipewright {

StallOptions StallOptionsFromEnvironment() {
  StallOptions options;
  auto seconds = [](const char* name, double otherwise) {
    const char* text = std::getenv(name);
    return text && *text ? std::strtod(text, nullptr) : otherwise;
  };
  options.limit = seconds("PIPEWRIGHT_STALL_LIMIT", options.limit);
  options.report = seconds("PIPEWRIGHT_STALL_REPORT", options.report);
  return options;
}

StallJudge::Verdict StallJudge::Look(double now, const std::vector<RankStatus>& ranks, bool all) {
  std::vector<Seen> seen;
  std::vector<const RankStatus*> left;
  for (const RankStatus& status : ranks) {
    // Saving all weights may take longer than the limit, so each saved weight counts as progress;
    // so does each computation of a device that the host waits for.
    const Awaited& awaits = status.awaits;
    const bool counts = awaits.kind == Awaited::kTensor || awaits.kind == Awaited::kDevice;
    const int at = counts ? -2 - awaits.microbatch : status.entry;
    // The sweeps of a validation all have one step number.
    seen.push_back({status.step, at, status.since});
    if (status.state == RankState::kRunning) left.push_back(&status);
  }
  bool all_wait =
      all && !left.empty() && std::all_of(left.begin(), left.end(), [](const RankStatus* s) {
        return s->awaits.another() && s->writing == 0;
      });
  // If this process itself was stopped, or the host slept, no time has passed.
  double passed = last_ < 0 ? 0 : std::min(now - last_, 1.0);
  last_ = now;
  if (seen != seen_ || left.empty()) {
    seen_ = std::move(seen);
    idle_ = stuck_ = reported_ = 0;
    all_waited_ = all_wait;
    return {};
  }
  idle_ += passed;
  stuck_ = all_wait && all_waited_ ? stuck_ + passed : 0;
  all_waited_ = all_wait;
  Verdict verdict;
  verdict.fatal = options_.limit > 0 && stuck_ >= options_.limit;
  if (!verdict.fatal && (options_.report <= 0 || idle_ - reported_ < options_.report)) return {};
  reported_ = idle_;
  verdict.report = "no rank has come further for " + std::to_string(std::lround(idle_)) + " s" +
                   (all_wait ? ": every rank waits for another" : "");
  constexpr size_t kMost = 64;
  for (size_t i = 0; i < left.size() && i < kMost; ++i)
    verdict.report += "\n  " + DescribeRank(*left[i]) + ": " + DescribePlace(*left[i]);
  if (left.size() > kMost)
    verdict.report += "\n  and " + std::to_string(left.size() - kMost) + " more";
  return verdict;
}

}  // namespace pipewright
