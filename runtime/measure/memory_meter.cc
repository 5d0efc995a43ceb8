#include "runtime/measure/memory_meter.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>

namespace pipewright {

struct MemoryMeter::Counter : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    Account& account = device.is_cpu() ? cpu : accelerators;
    account.live += bytes;
    account.peak = std::max(account.peak, account.live);
  }
  bool memoryProfilingEnabled() const override { return true; }
  struct Account {
    int64_t live = 0, peak = 0;
  };
  Account cpu, accelerators;
};

struct MemoryMeter::State {
  std::shared_ptr<Counter> counter = std::make_shared<Counter>();
  Counter::Account* shown = &counter->cpu;
  c10::DebugInfoGuard guard{c10::DebugInfoKind::PROFILER_STATE, counter};
};

MemoryMeter::MemoryMeter() : state_(std::make_unique<State>()) {}
MemoryMeter::~MemoryMeter() = default;
void MemoryMeter::Show(c10::Device device) {
  Counter& counter = *state_->counter;
  state_->shown = device.is_cpu() ? &counter.cpu : &counter.accelerators;
}
int64_t MemoryMeter::live() const { return state_->shown->live; }
int64_t MemoryMeter::peak() const { return state_->shown->peak; }
void MemoryMeter::ResetPeak() { state_->shown->peak = state_->shown->live; }

}  // namespace pipewright
