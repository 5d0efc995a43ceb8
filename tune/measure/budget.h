// The time that a tune may take, and whether the user has ended it.
#pragma once
#include <chrono>
#include <limits>
#include <map>
#include <string>

#include "base/process/child.h"

namespace pipewright {

// Parses "90", "90s", "2m" or "1h" as seconds. Throws Error naming `where`.
double ParseDuration(const std::string& text, const std::string& where);

// Formats seconds: "8 s", "3 min", "2 h".
std::string DurationText(double seconds);

class TuneBudget {
 public:
  using Clock = std::chrono::steady_clock;

  // Begins now. `option` is what the user gave it with.
  explicit TuneBudget(double seconds = std::numeric_limits<double>::infinity(),
                      const std::string& option = "--budget");

  // Returns the seconds that are left, 0 at least. After an interrupt, none are.
  double Left() const;
  bool IsOver() const { return Left() <= 0; }
  double Passed() const;  // seconds since the beginning
  // Returns a budget that ends after this share of what is left.
  TuneBudget Share(double share) const;
  // Returns the limits for a program that runs now.
  ChildLimits Limits() const;
  // Returns what ended it: its option or "the interrupt".
  std::string Ended() const;
  static bool Interrupted();

 private:
  Clock::time_point start_;
  double seconds_;
  std::string option_;
};

// While one exists, SIGINT and SIGTERM end all budgets. A second signal ends the process. One that
// is made while another exists does nothing.
class InterruptsEndBudgets {
 public:
  InterruptsEndBudgets();
  ~InterruptsEndBudgets();
  InterruptsEndBudgets(const InterruptsEndBudgets&) = delete;

 private:
  std::map<int, void (*)(int)> before_;  // the handlers of both signals, to be restored
};

}  // namespace pipewright
