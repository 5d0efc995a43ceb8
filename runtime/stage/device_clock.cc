#include "runtime/stage/device_clock.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "runtime/exec/clock.h"

namespace pipewright {

void DeviceClock::Begin() { used_ = reached_ = 0; }

int DeviceClock::Mark() {
  if (device_.is_cpu()) return -1;
  if (used_ == 0) first_ = Now();
  if (used_ == events_.size())
    events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  const c10::impl::VirtualGuardImpl guard(device_.type());
  events_[used_].record(guard.getStream(device_));
  return static_cast<int>(used_++);
}

int DeviceClock::Reached() {
  while (reached_ < used_ && events_[reached_].query()) ++reached_;
  return static_cast<int>(reached_);
}

void DeviceClock::Await(Transport& transport, std::chrono::microseconds poll) {
  if (device_.is_cpu()) return;
  // Marks of other streams may take longer.
  c10::Event launched(device_.type());
  launched.record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  auto awaits = [&]() -> Awaited {
    if (launched.query()) return {};
    return {.kind = Awaited::kDevice, .microbatch = Reached()};
  };
  transport.WaitUntil(awaits, poll);
  transport.Pending();
}

double DeviceClock::Moment(int mark) {
  c10::Event& event = events_[static_cast<size_t>(mark)];
  if (!event.query()) event.synchronize();
  return first_ + events_[0].elapsedTime(event) / 1e3;
}

}  // namespace pipewright
