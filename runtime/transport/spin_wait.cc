#include "runtime/transport/spin_wait.h"

#include <sys/resource.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace pipewright {

namespace {

using std::chrono::microseconds;

// A waiting thread spins for kAwake if it has the core to itself, and for kAwakeAmongOthers within
// kRemembered after another program was seen to take the core for more than kLost.
constexpr auto kAwake = microseconds(10000), kAwakeAmongOthers = microseconds(300),
               kRemembered = microseconds(1000000), kLost = microseconds(500);

// Returns how long to sleep between two polls after `idle` without progress: a share of `idle`, so
// that both the added delay and the cost of polling stay a fraction of the time that has passed
// anyway.
microseconds Nap(SpinWait::Clock::duration idle, microseconds least, microseconds most) {
  auto share = std::chrono::duration_cast<microseconds>(idle) / 4;
  return std::clamp(share, least, most);
}

// Yields the core's execution units to its other hardware thread for a moment.
void Relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Returns how often this thread has been preempted.
long Preemptions() {
  rusage usage{};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

}  // namespace

void SpinWait::Pause() {
  Relax();
  constexpr int kAtOnce = 50;
  if (looks_ < kAtOnce && ++looks_ < kAtOnce) return;
  const auto now = Clock::now();
  if (start_ == Clock::time_point()) start_ = last_ = now, preemptions_ = Preemptions();
  if (now - last_ > kLost) {  // another program had the core, or a message was copied
    const long before = std::exchange(preemptions_, Preemptions());
    if (preemptions_ > before) disturbed_ = now;
  }
  last_ = now;
  const auto waited = now - start_;
  if (crowded_ && waited < microseconds(50))
    std::this_thread::yield();
  else if (crowded_)
    Sleep(Nap(waited, microseconds(10), microseconds(500)));
  else if (waited > (now - disturbed_ < kRemembered ? kAwakeAmongOthers : kAwake))
    Sleep(Nap(waited / 4, microseconds(5), microseconds(50)));
}

void SpinWait::Sleep(microseconds time) {
  std::this_thread::sleep_for(time);
  last_ = Clock::now();
}

}  // namespace pipewright
