#include "tune/measure/budget.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>

#include "base/error.h"

namespace pipewright {

static volatile std::sig_atomic_t interrupted = 0;
static int interrupts = 0;  // objects of InterruptsEndBudgets

static constexpr double kMinute = 60, kHour = 3600;

double ParseDuration(const std::string& text, const std::string& where) {
  char* end = nullptr;
  double seconds = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  if (unit == "m" || unit == "min")
    seconds *= kMinute;
  else if (unit == "h")
    seconds *= kHour;
  else if (!unit.empty() && unit != "s")
    end = nullptr;
  if (!end || end == text.c_str() || !std::isfinite(seconds) || seconds < 0)
    throw Error(where, "\"" + text + "\" is not a duration",
                "give seconds, or a number with s, m or h: 90, 90s, 2m, 1h");
  return seconds;
}

std::string DurationText(double seconds) {
  if (seconds < 2 * kMinute) return std::to_string(static_cast<long>(std::ceil(seconds))) + " s";
  if (seconds < 2 * kHour)
    return std::to_string(static_cast<long>(std::ceil(seconds / kMinute))) + " min";
  return std::to_string(static_cast<long>(std::ceil(seconds / kHour))) + " h";
}

TuneBudget::TuneBudget(double seconds, const std::string& option)
    : start_(Clock::now()), seconds_(seconds), option_(option) {}

double TuneBudget::Passed() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

double TuneBudget::Left() const { return interrupted ? 0 : std::max(0.0, seconds_ - Passed()); }

TuneBudget TuneBudget::Share(double share) const { return TuneBudget(share * Left(), option_); }

ChildLimits TuneBudget::Limits() const { return {Left(), &interrupted}; }

std::string TuneBudget::Ended() const { return Interrupted() ? "the interrupt" : option_; }

bool TuneBudget::Interrupted() { return interrupted != 0; }

InterruptsEndBudgets::InterruptsEndBudgets() {
  if (interrupts++ > 0) return;
  interrupted = 0;
  for (const int signal : {SIGINT, SIGTERM}) {
    before_[signal] = std::signal(signal, [](int number) {
      interrupted = 1;
      std::signal(number, SIG_DFL);
    });
    if (before_[signal] == SIG_IGN)
      std::signal(signal, SIG_IGN);  // it runs in the background of a shell
  }
}

InterruptsEndBudgets::~InterruptsEndBudgets() {
  if (--interrupts > 0) return;
  for (const auto& [signal, handler] : before_) std::signal(signal, handler);
  interrupted = 0;
}

}  // namespace pipewright
