// What a thread does between two looks while it waits.
#pragma once
#include <chrono>

namespace pipewright {

// With a core of its own the thread keeps it: a core that has slept computes slower at first, by 3
// to 10 % of a kernel of some milliseconds. Beside other programs it keeps it for a short while: one
// that kept it longer would have used its time slice up when its work arrives, and another program
// would run first, for milliseconds. A thread that wakes from a nap gets its core back at once.
// For one wait. `crowded`: there are more ranks than cores. `disturbed`: when another program was
// last seen to have the core; the thread's own, from wait to wait.
class Patience {
 public:
  using Clock = std::chrono::steady_clock;
  Patience(bool crowded, Clock::time_point& disturbed) : crowded_(crowded), disturbed_(disturbed) {}
  void Pause();

 private:
  void Sleep(std::chrono::microseconds time);

  const bool crowded_;
  Clock::time_point& disturbed_;
  int looks_ = 0;
  Clock::time_point start_, last_;
  long preemptions_ = 0;
};

}  // namespace pipewright
