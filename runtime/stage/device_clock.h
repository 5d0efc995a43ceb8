// Times what a device computes by its own events, because the host only launches it.
#pragma once
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <cstddef>
#include <vector>

#include "runtime/exec/transport.h"

namespace pipewright {

class DeviceClock {
 public:
  explicit DeviceClock(c10::Device device) : device_(device) {}

  // Forgets all marks.
  void Begin();
  // Marks a moment in the work of the current stream and returns its number; -1 on the CPU.
  int Mark();
  // Returns how many marks the device has reached. Never waits.
  int Reached();
  // Waits until the device has done what this thread has launched on its current stream, and throws
  // if a transfer has failed, because its values must not be used. To be called before anything
  // that blocks the host until then: unlike that, it lets the watchdog know, and transfers go on.
  // `transport` moves the values that the device waits for. Returns at once on the CPU.
  void Await(Transport& transport, std::chrono::microseconds poll = std::chrono::microseconds(20));
  // Returns when the device reached a mark, in seconds on the steady clock. The device is taken to
  // have reached the first mark when it was made. Waits for the device if it is not there yet.
  double Moment(int mark);

 private:
  const c10::Device device_;
  std::vector<c10::Event> events_;  // the first `used_` are marks; the others can be used again
  size_t used_ = 0, reached_ = 0;
  double first_ = 0;  // when the first mark was made
};

}  // namespace pipewright
