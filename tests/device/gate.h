// Keeps a stream of the test device busy until the host opens the gate, so that a test sees what
// comes after the stream's work and what does not, regardless of timing.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <thread>
#include <utility>

#include "device.h"

namespace sim {

class Gate {
 public:
  Gate() = default;
  explicit Gate(Queue& queue) { Hold(queue); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { Open(); }

  void Hold(Queue& queue) {
    Launch(queue, "gate", [opens = opened_] { opens.wait(); }, {});
  }
  void Open() {
    if (!std::exchange(open_, true)) opens_.set_value();
  }

  // Calls `act`, and opens the gate when the host waits or `act` has ended. Returns which of the
  // two it was: true if the host had to wait. `waits` says whether it does.
  bool StopsHost(
      const std::function<void()>& act,
      const std::function<bool()>& waits = [] { return HostsWaiting() > 0; }) {
    std::atomic<bool> ended = false;
    std::future<bool> opener = std::async(std::launch::async, [&] {
      bool stopped = false;
      while (!ended && !(stopped = waits()))
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      Open();
      return stopped;
    });
    {
      struct End {
        std::atomic<bool>& ended;
        ~End() { ended = true; }
      } const end{ended};
      act();
    }
    return opener.get();
  }

 private:
  std::promise<void> opens_;
  const std::shared_future<void> opened_ = opens_.get_future().share();
  bool open_ = false;
};

}  // namespace sim
