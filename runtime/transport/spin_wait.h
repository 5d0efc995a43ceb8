// SpinWait decides how a waiting thread spends the time between two polls: spin, yield or sleep.
#pragma once
#include <chrono>

namespace pipewright {

// A thread that has a core of its own spins: a core that has slept is 3 to 10 % slower at first, in
// a kernel of some milliseconds. A thread that shares its core with other programs spins only
// briefly: if it spun longer, its time slice would be used up when its work arrives, and another
// program would run first, for milliseconds. A thread that wakes from a nap gets its core back
// immediately.
//
// One object serves one wait. `crowded` says that there are more ranks than cores. `disturbed` is
// the time when another program was last seen on the core; the thread keeps it from wait to wait.
class SpinWait {
 public:
  using Clock = std::chrono::steady_clock;
  SpinWait(bool crowded, Clock::time_point& disturbed) : crowded_(crowded), disturbed_(disturbed) {}
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
